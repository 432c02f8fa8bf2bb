"""`srb compare`: generates texts with different prompts, settings and models, and reports on them side by side."""

import argparse
import asyncio
import contextlib
import dataclasses
import importlib.util
import sys
import tempfile
from datetime import datetime
from pathlib import Path

from srb.errors import InvalidRequestError, SettingsError, SrbError
from srb.options.arguments import pip_install
from srb.options.settings import CHAT_OPTIONS, SERVER_OPTIONS, Settings, add_arguments
from srb.terminal.comparison.measures import Findings, groups_of
from srb.terminal.comparison.rating import Ratings, rate, read_ratings, strengths
from srb.terminal.comparison.report import write_report
from srb.terminal.comparison.results import Results, differences, read_results, write_tables
from srb.terminal.comparison.running import Usage, judge, run
from srb.terminal.comparison.scorers import Scorers
from srb.terminal.comparison.spec import Spec, read_spec
from srb.terminal.generate import check_url_options
from srb.terminal.source import Source, open_source

EXTRAS = ("matplotlib", "sacrebleu", "scipy")
"""The modules that every comparison needs beside srb's own requirements."""


def add_compare_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `srb compare`."""
    parser.add_argument(
        "spec", type=Path, nargs="?", help="TOML file with prompts, settings, n and seeds; see docs/using/terminal.md"
    )
    parser.add_argument("--out", type=Path, help="folder for the results (default: SPEC-results, where you are)")
    parser.add_argument(
        "--report",
        type=Path,
        nargs="+",
        metavar="FOLDER",
        help="no spec: one report about the results in these folders",
    )
    parser.add_argument(
        "--rate",
        type=Path,
        metavar="FOLDER",
        help="no spec: rate the texts in this folder, two at a time, in a browser",
    )
    parser.add_argument(
        "--verify",
        action="store_true",
        help="generate the results of SPEC again, write nothing, and say which are others now; with --reproducible "
        "none may be",
    )
    add_arguments(parser, without=SERVER_OPTIONS - CHAT_OPTIONS)


def compare(settings: Settings, arguments: argparse.Namespace) -> int:
    """Runs `srb compare` and returns its exit code: 1 if an alternative has failed. Raises `SrbError`."""
    try:
        return _compare(settings, arguments)
    except BrokenPipeError:
        raise
    except OSError as error:
        what = error.filename or "the results"
        raise SrbError(f"{what} can't be written: {error.strerror}; what is there already is kept") from None


def _compare(settings: Settings, arguments: argparse.Namespace) -> int:
    for module in EXTRAS:
        if importlib.util.find_spec(module) is None:
            command = pip_install("'llama-srb[compare]'")
            raise SettingsError(f"srb compare needs {module}: {command}")
    if [arguments.spec, arguments.report, arguments.rate].count(None) != 2:
        raise SettingsError("srb compare takes a spec, or --report or --rate with the results of earlier runs")
    if arguments.report:
        return _report(arguments.report, arguments.out)
    if arguments.rate:
        return _rate(arguments.rate)
    check_url_options(settings, arguments)
    spec = read_spec(arguments.spec, settings)
    folder = arguments.out or Path(f"{arguments.spec.stem}-results")
    usage = Usage()
    if arguments.verify:
        return _verify(settings, spec, folder, usage)
    with Results(folder, spec) as results:
        try:
            _run(settings, results, usage)
        except (SettingsError, InvalidRequestError):
            raise  # the spec is wrong, and the folder's results may be those of another spec, so no report is written
        except BaseException:
            if not results.is_empty:
                _finish(folder, results, usage)
                print(
                    f"srb: {folder} has {len(results)} of {results.wanted} alternatives; the same command goes on",
                    file=sys.stderr,
                )
            raise
        for message in usage.errors:
            print(f"srb: {message}", file=sys.stderr)
        _finish(folder, results, usage)
        print(f"{len(results)} of {results.wanted} alternatives; {usage}; see {folder / 'report.html'}")
        return int(len(results) < results.wanted)


def _verify(settings: Settings, spec: Spec, folder: Path, usage: Usage) -> int:
    recorded = sum(each.finish_reason != "abort" for each in read_results(folder))
    with tempfile.TemporaryDirectory() as again:
        with Results(Path(again), dataclasses.replace(spec, scorers=Scorers())) as results:
            _run(settings, results, usage)
            results.finish()
        found = [*differences(folder, Path(again))]
    for message in (*usage.errors, *found):
        print(f"srb: {message}", file=sys.stderr)
    print(f"{recorded - len(found)} of {recorded} alternatives are the same, to the last bit")
    return int(bool(found))


def _run(settings: Settings, results: Results, usage: Usage) -> None:
    """Generates with one model after the other. When all texts are there, the judges' models are asked."""
    spec = results.spec
    judges = spec.scorers.judges
    # All models are looked for now, so that none is found missing after hours of work with the others.
    sources = {model: open_source(_settings_of(model, settings, results)) for model in spec.models}
    last = [*spec.models][-1]
    for model, source in sources.items():
        # After the last model all texts are there. It judges while it is loaded, and needn't be loaded again.
        asyncio.run(_run_model(source, model, results, settings.max_n, usage, is_last=model == last))
    for model in sorted({each.model for each in judges.values()} - {last}):
        asyncio.run(_judge(open_source(_settings_of(model, settings, results)), model, results, usage))


def _settings_of(model: str, settings: Settings, results: Results) -> Settings:
    return dataclasses.replace(settings, **results.spec.models[model])


async def _run_model(source: Source, model: str, results: Results, max_n: int, usage: Usage, *, is_last: bool) -> None:
    async with source:
        await run(source, model, results, max_n, usage)
        if is_last:
            await _ask_judges(source, model, results, usage)


async def _judge(source: Source, model: str, results: Results, usage: Usage) -> None:
    async with source:
        await _ask_judges(source, model, results, usage)


async def _ask_judges(source: Source, model: str, results: Results, usage: Usage) -> None:
    for name, each in results.spec.scorers.judges.items():
        if each.model == model:
            await judge(source, name, each, results, usage)


def _finish(folder: Path, results: Results, usage: Usage) -> None:
    found = results.finish()
    each = len(results.spec.all_seeds)
    cut = len(found.results) - len(results)
    notes = [f"{len(results)} of {results.wanted} alternatives, {each} of each kind. Last run: {usage}."]
    if cut:
        notes.append(
            f"The run was interrupted: {cut} more alternatives were cut off, and are marked. Run it again to go on."
        )
    notes.append(_repeats(results.fingerprints))
    write_report(folder / "report.html", found, notes=notes, date=_now(), ratings=read_ratings(folder))


def _repeats(fingerprints: set[str | None]) -> str:
    """Whether another run gives the same results."""
    if len(fingerprints) > 1:
        return "Some of these were generated with other options, or on another machine: not all will be the same again."
    (fingerprint,) = fingerprints or {None}
    if fingerprint:
        return f"Where srb's fingerprint is {fingerprint}, the same command generates the same texts."
    return "The same command may generate other texts; with --reproducible they are the same."


def _report(folders: list[Path], out: Path | None) -> int:
    """Writes one report about several runs. Each run has the name of its folder."""
    names = [folder.name or str(folder) for folder in map(Path.absolute, folders)]
    if len({*names}) < len(names):
        raise SettingsError(f"--report takes folders of different names, got {', '.join(names)}")
    results = [each for folder, name in zip(folders, names, strict=True) for each in read_results(folder, name)]
    if not results:
        raise SettingsError(f"--report: there are no results in {', '.join(map(str, folders))}")
    out = out or Path("-".join(names))
    out.mkdir(parents=True, exist_ok=True)
    found = Findings.of(results)
    write_tables(out, found)
    write_report(out / "report.html", found, notes=[f"Runs: {', '.join(names)}."], date=_now())
    print(f"{len(results)} alternatives; see {out / 'report.html'}")
    return 0


def _rate(folder: Path) -> int:
    """Lets a person rate the texts in a folder, and writes its report anew."""
    results = read_results(folder)
    ratings = Ratings(folder, results)
    if not ratings.left and not ratings.given:
        raise SettingsError(
            f"{folder} has no two different texts of one prompt and seed; compare two settings at least"
        )
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(rate(ratings))
    found = Findings.of(results)
    write_report(folder / "report.html", found, notes=[], date=_now(), ratings=ratings.given)
    known = {kind: each for kind, each in strengths(ratings.given, groups_of(results)).items() if kind in found.names}
    for kind, each in known.items():
        ends = " ({:.0f} to {:.0f})".format(*each.interval) if each.interval else ""
        print(f"{each.elo:5.0f}{ends} {found.names[kind]}")
    print(f"{len(ratings.given)} ratings; see {folder / 'report.html'}")
    return 0


def _now() -> str:
    return f"{datetime.now().astimezone():%Y-%m-%d %H:%M %Z}"

"""`srb compare`: generates texts with different prompts, settings and models, and reports on them."""

import argparse
import asyncio
import contextlib
import dataclasses
import importlib.util
import sys
import tempfile
from pathlib import Path

from srb.errors import InvalidRequestError, ModelLoadError, SettingsError, SrbError
from srb.options.arguments import pip_install
from srb.options.settings import CHAT_OPTIONS, SERVER_OPTIONS, Settings, add_arguments
from srb.terminal.comparison.inspect_logs import write_logs
from srb.terminal.comparison.measures import Findings
from srb.terminal.comparison.rating import Ratings, rate, read_ratings, strengths
from srb.terminal.comparison.report import render
from srb.terminal.comparison.results import Results, differences, read_results, write_tables
from srb.terminal.comparison.running import begin, judge, run
from srb.terminal.comparison.scorers import Scorers
from srb.terminal.comparison.sequential import Sequential, notes_of, read_decisions, write_decisions
from srb.terminal.comparison.spec import Spec, read_spec
from srb.terminal.generate import check_url_options
from srb.terminal.source import Source, open_source

EXTRAS = ("matplotlib", "sacrebleu", "scipy")
"""Modules of the extra `compare` that every comparison needs."""


def add_compare_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `srb compare`."""
    parser.add_argument(
        "spec", type=Path, nargs="?", help="a TOML file of prompts, settings, n and seeds; see docs/using/terminal.md"
    )
    parser.add_argument("--out", type=Path, help="folder for the results (default: SPEC-results in the current folder)")
    parser.add_argument(
        "--report",
        type=Path,
        nargs="+",
        metavar="FOLDER",
        help="without a spec: write one report about the results in these folders",
    )
    parser.add_argument(
        "--rate",
        type=Path,
        nargs="+",
        metavar="FOLDER",
        help="without a spec: rate the texts in these folders in a browser, two at a time",
    )
    parser.add_argument(
        "--until",
        type=float,
        metavar="ERROR",
        help="look at the results after every few texts, and end when the settings are found to differ; ERROR, such as "
        "0.05, is the probability of finding a difference that isn't there",
    )
    parser.add_argument(
        "--verify",
        action="store_true",
        help="generate the results of SPEC again, write nothing, and list those that differ; none should with "
        "--reproducible",
    )
    parser.add_argument(
        "--export",
        choices=("inspect",),
        help="with a spec or --report: also write the results as logs of inspect-ai, one for each setting and model",
    )
    add_arguments(parser, without=SERVER_OPTIONS - CHAT_OPTIONS)


def compare(settings: Settings, arguments: argparse.Namespace) -> int:
    """Run `srb compare`.

    Returns the exit code: 1 if an alternative failed, or if `--verify` found a difference. Raises `SrbError`.
    """
    try:
        return _compare(settings, arguments)
    except BrokenPipeError:
        raise
    except OSError as error:
        what = error.filename or "the results"
        raise SrbError(f"{what} can't be written: {error.strerror}; earlier results are intact") from None


def _compare(settings: Settings, arguments: argparse.Namespace) -> int:
    for module in EXTRAS:
        if importlib.util.find_spec(module) is None:
            command = pip_install("'llama-srb[compare]'")
            raise SettingsError(f"srb compare needs {module}: {command}")
    if [arguments.spec, arguments.report, arguments.rate].count(None) != 2:
        raise SettingsError("srb compare takes either a spec, or --report or --rate with the results of earlier runs")
    if arguments.export and (arguments.rate or arguments.verify):
        raise SettingsError("--export needs a spec, or --report with the results of earlier runs; leave it out")
    if arguments.until is not None and not arguments.spec:
        raise SettingsError("--until needs a spec, because it decides what to generate")
    if arguments.report:
        return _report("--report", arguments.report, arguments.out, arguments.export)
    if arguments.rate:
        return _report("--rate", arguments.rate, arguments.out, None)
    if arguments.until is not None and not 0 < arguments.until < 1:
        raise SettingsError(f"--until must be above 0 and below 1, such as 0.05, got {arguments.until:g}")
    if arguments.until is not None and arguments.verify:
        raise SettingsError("--verify generates all results of the spec again; leave out --until")
    check_url_options(settings, arguments)
    spec = read_spec(arguments.spec, settings)
    folder = arguments.out or Path(f"{arguments.spec.stem}-results")
    if arguments.verify:
        return _verify(settings, spec, folder)
    with Results(folder, spec) as results:
        until = Sequential(results, arguments.until) if arguments.until else None
        try:
            _run(settings, results, until)
        except (SettingsError, InvalidRequestError):
            raise  # the results in the folder may belong to another spec, so no report is written
        except BaseException:
            if len(results):
                _finish(folder, results, until)
                print(
                    f"srb: {folder} has {len(results)} of {results.wanted} alternatives; run it again to continue",
                    file=sys.stderr,
                )
            raise
        for message in results.usage.errors:
            print(f"srb: {message}", file=sys.stderr)
        if not len(results):
            print(f"0 of {results.wanted} alternatives; {results.usage}")
            return 1
        found = _finish(folder, results, until)
        for note in notes_of([*map(str, read_decisions(folder))]):
            print(note)
        print(f"{len(results)} of {results.wanted} alternatives; {results.usage}; see {folder / 'report.html'}")
        _export(folder, found, arguments.export)
        return int(bool(results.usage.errors) if until else len(results) < results.wanted)


def _verify(settings: Settings, spec: Spec, folder: Path) -> int:
    recorded = read_results(folder)
    with (
        tempfile.TemporaryDirectory() as again,
        Results(Path(again), dataclasses.replace(spec, scorers=Scorers())) as results,
    ):
        _run(settings, results)
        found = [*differences(recorded, results.finish().results)]
    for message in (*results.usage.errors, *found):
        print(f"srb: {message}", file=sys.stderr)
    print(f"{len(recorded) - len(found)} of {len(recorded)} alternatives are identical")
    return int(bool(found))


def _run(settings: Settings, results: Results, until: Sequential | None = None) -> None:
    """Generate with one model after the other, and then ask the judges."""
    spec = results.spec
    judges = spec.scorers.judges
    # Find all models first, so that a missing one is noticed before hours of work.
    sources = _sources(settings, results)
    last = [*spec.models][-1]
    for model, source in sources.items():
        # After the last model all texts are complete. It judges them while it is still loaded.
        asyncio.run(_run_model(source, model, results, settings.max_n, judges=model == last, until=until))
    for model in sorted({each.model for each in judges.values()} - {last}):
        source = open_source(_settings_of(model, settings, results))
        asyncio.run(_run_model(source, model, results, None, judges=True))


def _sources(settings: Settings, results: Results) -> dict[str, Source]:
    """Find the models. Raises `ModelLoadError` with all that can't be found."""
    sources, mistakes = {}, []
    for model in results.spec.models:
        try:
            sources[model] = open_source(_settings_of(model, settings, results))
        except (ModelLoadError, SettingsError) as error:
            mistakes.append(f"models.{model}: {error.message}" if model else error.message)
    if mistakes:
        raise ModelLoadError("\n- ".join(mistakes if len(mistakes) == 1 else ("some models can't be used:", *mistakes)))
    return sources


def _settings_of(model: str, settings: Settings, results: Results) -> Settings:
    return dataclasses.replace(settings, **results.spec.models[model])


async def _run_model(
    source: Source, model: str, results: Results, max_n: int | None, *, judges: bool, until: Sequential | None = None
) -> None:
    """Generate with a model, unless `max_n` is None, and ask its judges."""
    async with source:
        missing = [] if max_n is None else await begin(source, model, results)
        scorers = results.spec.scorers
        asked = {name: each for name, each in scorers.judges.items() if judges and each.model == model}
        relative = {name: asked.pop(name) for name in scorers.relative if name in asked}
        for part in until.rounds(missing) if until else [missing]:
            if max_n is not None:
                await run(source, model, results, part, max_n)
            for name, scorer in asked.items():
                await judge(source, name, scorer, results)
        for name, scorer in relative.items():  # last, because each new text changes the scores of all others
            await judge(source, name, scorer, results)


def _finish(folder: Path, results: Results, until: Sequential | None = None) -> Findings:
    decisions = until.decisions if until else []
    write_decisions(folder, decisions)
    found = results.finish([each.test() for each in decisions])
    each = len(results.spec.all_seeds)
    notes = [
        f"{len(results)} of {results.wanted} alternatives, {each} for each prompt and kind. Last run: {results.usage}."
    ]
    notes += [*notes_of([*map(str, decisions)]), _repeats(results.fingerprints)]
    (folder / "report.html").write_text(render(found, notes, read_ratings(folder)), encoding="utf-8")
    return found


def _repeats(fingerprints: set[str | None]) -> str:
    """Return a note about whether another run gives the same results."""
    if len(fingerprints) > 1:
        return "Some of these were generated with other options or on another machine, so another run may differ."
    (fingerprint,) = fingerprints or {None}
    if fingerprint:
        return f"With the fingerprint {fingerprint}, the same command generates the same texts."
    return "The same command may generate different texts; use --reproducible for identical ones."


def _export(folder: Path, found: Findings, export: str | None) -> None:
    """Write the results in the format of another program, if that was asked for."""
    if export == "inspect":
        print(f"to see them in inspect-ai: inspect view --log-dir {write_logs(folder, found.results)}")


def _report(option: str, folders: list[Path], out: Path | None, export: str | None) -> int:
    """Write one report about several runs, or that of one again. With `--rate` a person rates their texts first."""
    names, out = _names(option, folders, out)
    results = [each for folder, name in names.items() for each in read_results(folder, name)]
    if not results:
        raise SettingsError(f"{option}: there are no results in {', '.join(map(str, folders))}")
    others = [folder for folder in folders if folder.absolute() != out.absolute()]
    ratings = Ratings(out, results, [each for folder in others for each in read_ratings(folder, names[folder])])
    out.mkdir(parents=True, exist_ok=True)
    if option == "--rate":
        if not ratings.left and not ratings.given:
            where = " and ".join(map(str, folders))
            raise SettingsError(
                f"{where} has no pair of different texts with the same prompt and seed; compare at least two settings"
            )
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(rate(ratings))
    decisions = [(name, each) for folder, name in names.items() for each in read_decisions(folder)]
    found = Findings.of(results, [(name, each.test()) for name, each in decisions])
    write_tables(out, found)
    runs = [f"Runs: {', '.join(names.values())}."] if len(folders) > 1 else []
    notes = runs + notes_of([f"{name}: {each}" if name else str(each) for name, each in decisions])
    (out / "report.html").write_text(render(found, notes, ratings.given), encoding="utf-8")
    if option == "--rate":
        for kind, each in strengths(ratings.given, results).items():
            ends = " ({:.0f} to {:.0f})".format(*each.interval) if each.interval else ""
            print(f"{each.elo:5.0f}{ends} {found.names[kind]}")
    count = f"{len(ratings.given)} ratings" if option == "--rate" else f"{len(results)} alternatives"
    print(f"{count}; see {out / 'report.html'}")
    _export(out, found, export)
    return 0


def _names(option: str, folders: list[Path], out: Path | None) -> tuple[dict[Path, str], Path]:
    """Return the names of runs, which are those of their folders, and the folder for the report.

    A single run has no name, and its own folder by default. Raises `SettingsError`.
    """
    if len(folders) == 1:
        return {folders[0]: ""}, out or folders[0]
    names = [folder.absolute().name or str(folder) for folder in folders]
    if len({*names}) < len(names):
        raise SettingsError(f"{option} takes folders with different names, got {', '.join(names)}")
    out = out or Path("-".join(names))
    if out.absolute() in map(Path.absolute, folders):
        raise SettingsError(f"{option} takes another folder for --out, got {out}")
    return dict(zip(folders, names, strict=True)), out

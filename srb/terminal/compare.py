"""`srb compare`: prompts with sampler settings, side by side in a report."""

import argparse
import asyncio
import importlib.util
import itertools
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from srb.errors import SettingsError, SrbError
from srb.progress import error_console
from srb.settings import SERVER_OPTIONS, Settings, add_arguments
from srb.terminal.generate import check_url_options
from srb.terminal.measures import Result
from srb.terminal.report import write_report
from srb.terminal.results import Alternative, Results
from srb.terminal.source import Body, Events, Source, open_source
from srb.terminal.spec import Spec, read_spec

MAX_REQUESTS = 64
"""How many requests are there at once; fewer than servers let wait."""


def add_compare_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what `srb compare` takes."""
    parser.add_argument("spec", type=Path, help="TOML file with prompts, settings, n and seeds; see docs/terminal.md")
    parser.add_argument("--out", type=Path, help="folder for the results (default: SPEC-results, where you are)")
    add_arguments(parser, without=SERVER_OPTIONS)


def compare(settings: Settings, arguments: argparse.Namespace) -> int:
    """Runs `srb compare` and returns its exit code: 1 if an alternative has failed. Raises `SrbError`."""
    for module in ("sacrebleu", "matplotlib"):
        if importlib.util.find_spec(module) is None:
            raise SettingsError(f"srb compare needs {module}: pip install 'llama-srb[compare]'")
    check_url_options(settings, arguments)
    spec = read_spec(arguments.spec, settings)
    folder = arguments.out or Path(f"{arguments.spec.stem}-results")
    source = open_source(settings)
    usage = Usage()
    with Results(folder, spec) as results:
        try:
            asyncio.run(_run(source, spec, results, settings.max_n, usage))
        except BaseException:
            if len(results):
                print(
                    f"srb: {folder} has {len(results)} of {results.wanted} alternatives; the same command goes on",
                    file=sys.stderr,
                )
            raise
        for message in usage.errors:
            print(f"srb: {message}", file=sys.stderr)
        finished, cells = results.finish()
        write_report(folder / "report.html", spec, finished, cells, model=source.model, usage=str(usage))
        print(f"{len(finished)} of {results.wanted} alternatives; {usage}; see {folder / 'report.html'}")
        return int(len(finished) < results.wanted)


@dataclass
class Usage:
    """What a run has cost, in tokens, and what went wrong."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    errors: list[str] = field(default_factory=list)

    def add(self, usage: dict[str, int]) -> None:
        """Adds the usage of a request."""
        self.prompt_tokens += usage["prompt_tokens"]
        self.cached_tokens += usage["cached_tokens"]
        self.completion_tokens += usage["completion_tokens"]

    def __str__(self) -> str:
        evaluated = self.prompt_tokens - self.cached_tokens
        return f"{evaluated} prompt tokens evaluated, {self.completion_tokens} tokens generated"


async def _run(source: Source, spec: Spec, results: Results, max_n: int, usage: Usage) -> None:
    console = error_console()
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    async with source:
        missing = results.open(source.model, source.identity)
        requests = list(_requests(missing, spec, max_n))
        with Progress(
            *columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal, transient=True
        ) as progress:
            left = sum(spec.most_tokens(each.setting) for each in missing)
            total = sum(map(spec.most_tokens, spec.settings)) * len(spec.prompts) * len(spec.all_seeds)
            task = progress.add_task("comparing", total=total, completed=total - left)
            while requests:
                group, requests = requests[:MAX_REQUESTS], requests[MAX_REQUESTS:]
                async with AsyncExitStack() as stack:
                    # All are taken before any is read: what one can't do, it says at the beginning.
                    opened = [(each, await _open(stack, source, each)) for each in group]
                    readers = [
                        _read(each, events, spec, results, usage, partial(progress.advance, task))
                        for each, events in opened
                    ]
                    await _all(readers)


async def _all(readers: list[Coroutine[Any, Any, None]]) -> None:
    """Runs them side by side; the first error cancels the others."""
    try:
        async with asyncio.TaskGroup() as group:
            for each in readers:
                group.create_task(each)
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None


@dataclass(frozen=True)
class Request:
    """Alternatives of one prompt."""

    alternatives: list[Alternative]
    body: Body


def _requests(missing: list[Alternative], spec: Spec, max_n: int) -> Iterator[Request]:
    """As few requests as there are prompts, or more where max_n is less than a prompt's alternatives.

    Alternatives that depend on others are in a request with these, all of them, also if some are there already.
    Prompts that begin alike follow each other, so that what they share is known, or kept, when it's asked for.
    """
    by_text = sorted(missing, key=lambda each: spec.prompts[each.prompt])  # stable: settings and seeds keep their order
    for text, group in itertools.groupby(by_text, lambda each: spec.prompts[each.prompt]):
        alone, joint = [], dict[Alternative, list[Alternative]]()
        for each in group:
            siblings = [Alternative(each.prompt, each.setting, seed) for seed in spec.siblings(each.setting, each.seed)]
            if len(siblings) == 1:
                alone.append(each)
            else:
                joint[siblings[0]] = siblings
        parts = [alone[i : i + max_n] for i in range(0, len(alone), max_n)]
        for some in (*parts, *joint.values()):
            branches = [spec.settings[each.setting] | {"seed": each.seed} for each in some]
            yield Request(some, {"prompt": text, "branches": branches, "logprobs": 0})


async def _open(stack: AsyncExitStack, source: Source, request: Request) -> Events:
    try:
        return await stack.enter_async_context(source.submit(request.body))
    except SrbError as error:
        error.message = f"prompts.{request.alternatives[0].prompt}: {error.message}"
        raise


async def _read(
    request: Request, events: Events, spec: Spec, results: Results, usage: Usage, advance: Callable[[float], None]
) -> None:
    """Keeps each alternative as soon as it has ended; failed ones are left for the next run."""
    texts = [""] * len(request.alternatives)
    async for event in events:
        match event["event"]:
            case "stream":
                texts[event["index"]] += event["text"]
                advance(1)
            case "stop" if event["finish_reason"] in ("stop", "length"):
                index, length = event["index"], event["length"]
                each = request.alternatives[index]
                reasons = event["finish_reason"], event["stop_reason"]
                results.add(
                    Result(
                        each.prompt, each.setting, each.seed, texts[index], length, *reasons, event.get("mean_logprob")
                    )
                )
                advance(spec.most_tokens(each.setting) - length)
            case "stop" if event["finish_reason"] == "abort":
                each = request.alternatives[event["index"]]
                usage.errors.append(f"{each.prompt}, {each.setting}, seed {each.seed}: ended by {event['stop_reason']}")
            case "error":
                each = request.alternatives[event.get("index", 0)]
                what = f"{each.prompt}, {each.setting}, seed {each.seed}" if "index" in event else each.prompt
                usage.errors.append(f"{what}: {event['error']['message']}")
            case "done":
                usage.add(event["usage"])

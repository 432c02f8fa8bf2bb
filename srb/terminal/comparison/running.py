"""Runs a comparison: sends its requests to a source, stores the results, and asks the judges."""

import asyncio
import itertools
import json
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from srb.errors import InvalidRequestError, SrbError
from srb.files.download import Count, show_count
from srb.terminal.comparison.measures import Result
from srb.terminal.comparison.prompts import Prompt
from srb.terminal.comparison.results import Name, Results
from srb.terminal.comparison.scorers import Judge, Surprise
from srb.terminal.comparison.spec import Spec, mistakes_of
from srb.terminal.source import Body, Events, Source

MAX_REQUESTS = 64
"""The number of concurrent requests. A server's queue holds more."""

Item = TypeVar("Item")


@dataclass(frozen=True)
class Request:
    """A request for some alternatives of one prompt."""

    alternatives: list[Result]
    body: Body


async def begin(source: Source, model: str, results: Results) -> list[Result]:
    """Return the missing alternatives of a model. `source` must be entered."""
    results.spec = await _with_forks(source, results.spec)
    return results.open(model, source.model, source.identity)


async def run(source: Source, model: str, results: Results, missing: list[Result], max_n: int) -> None:
    """Generate missing alternatives of a model. `source` must be entered."""
    spec = results.spec
    total = sum(spec.most_tokens(each.setting) for each in missing)
    with show_count(f"comparing {model}".rstrip(), total) as advance:
        for group in _batched([*requests(missing, results, max_n)]):
            async with AsyncExitStack() as stack:
                # Open all requests before reading, so that a refused one fails at once.
                opened = [(each, await _open(stack, source, each)) for each in group]
                await _all([_read(each, events, results, advance) for each, events in opened])


async def judge(source: Source, name: str, scorer: Judge | Surprise, results: Results) -> None:
    """Ask a scorer about all results without a score. `source` must be entered, and have the scorer's model."""
    tables = results.unscored(scorer)
    total, without = sum(len(lines) for _, lines in tables), 0
    errors: list[str] = []
    with show_count(f"scoring: {name}", total) as advance:

        async def ask(context: str, lines: list[Result]) -> None:
            nonlocal without
            async with scorer.ask(source, context, lines) as events:
                async for event in events:
                    if found := scorer.read(event, lines):
                        results.score(scorer, context, *found)
                        without += found[1] is None
                        advance()
                    elif event["event"] == "error":
                        errors.append(event["error"]["message"])
                    elif event["event"] == "done":
                        results.usage.add(event["usage"])

        for group in _batched(tables):
            await _all([ask(*each) for each in group])
    if without:
        results.usage.errors.append(
            f"scorers.{name}: {without} of {total} texts have no score, because {scorer.no_score}"
        )
    if errors:
        left = sum(len(lines) for _, lines in results.unscored(scorer))
        results.usage.errors.append(f"scorers.{name}: {left} of {total} texts have no score: {errors[0]}")


async def _with_forks(source: Source, spec: Spec) -> Spec:
    """Replace each prompt with forks by its forks. The first model chooses the top tokens."""
    prompts: dict[str, Prompt] = {}
    for name, prompt in spec.prompts.items():
        if not prompt.forks:
            prompts[name] = prompt
            continue
        forks = prompt.forks if isinstance(prompt.forks, tuple) else await _top_tokens(source, prompt, prompt.forks)
        prompts |= {f"{name} {text!r}": forked for text, forked in prompt.forked(forks).items()}
    for mistake in mistakes_of(prompts):
        raise InvalidRequestError(mistake)
    return replace(spec, prompts=prompts)


async def _top_tokens(source: Source, prompt: Prompt, count: int) -> tuple[str, ...]:
    """Return the texts of the top next tokens, without empty ones and parts of characters."""
    body = prompt.body | {"n": 1, "max_tokens": 1, "temperature": 0, "ignore_eos": True, "logprobs": 100}
    async with source.submit(body) as events:
        found = [event async for event in events if event["event"] == "stream"]
    texts = [each["token"] for event in found[:1] for each in event["top_logprobs"]]
    return tuple([text for text in dict.fromkeys(texts) if text and "\ufffd" not in text][:count])


def _batched(items: list[Item]) -> Iterator[list[Item]]:
    return (items[i : i + MAX_REQUESTS] for i in range(0, len(items), MAX_REQUESTS))


async def _all(coroutines: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Run coroutines concurrently. The first error cancels the others and is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            for each in coroutines:
                group.create_task(each)
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None


def requests(missing: list[Result], results: Results, max_n: int) -> Iterator[Request]:
    """Yield the requests for the missing alternatives: one for each prompt, or more for more than `max_n` alternatives.

    Alternatives that depend on each other share a request, also if some of them have a result. Prompts are sorted, so
    that those with a shared prefix follow each other, and the prefix is still cached.
    """

    spec = results.spec

    def text(each: Result) -> str:
        return json.dumps(spec.prompts[each.prompt].body, ensure_ascii=False)

    by_text = sorted(missing, key=text)  # a stable sort: settings and seeds keep their order
    for _, group in itertools.groupby(by_text, text):
        alone, joint = [], dict[Name, list[Result]]()
        for each in group:
            seeds = spec.siblings(each.setting, each.seed)
            siblings = [results.asked[each.model, each.prompt, each.setting, seed] for seed in seeds]
            if len(siblings) == 1:
                alone.append(each)
            else:
                joint[siblings[0].name] = siblings
        parts = [alone[i : i + max_n] for i in range(0, len(alone), max_n)]
        for some in (*parts, *joint.values()):
            branches = [spec.fields(each.setting, each.seed) | {"seed": each.seed} for each in some]
            body = spec.prompts[some[0].prompt].body
            yield Request(some, body | {"branches": branches, "logprobs": spec.logprobs})


async def _open(stack: AsyncExitStack, source: Source, request: Request) -> Events:
    try:
        return await stack.enter_async_context(source.submit(request.body))
    except SrbError as error:
        error.message = f"prompts.{request.alternatives[0].prompt}: {error.message}"
        raise


async def _read(request: Request, events: Events, results: Results, advance: Count) -> None:
    """Store each alternative when it ends. Failed alternatives are left for the next run."""
    tokens: list[list[Any]] = [[] for _ in request.alternatives]
    fingerprint = None
    async for event in events:
        match event["event"]:
            case "start":
                fingerprint = event.get("fingerprint")
            case "stream":
                tokens[event["index"]].append(_token(event))
                advance()
            case "stop" if event["finish_reason"] in ("stop", "length"):
                each, own = request.alternatives[event["index"]], tokens[event["index"]]
                results.add(
                    replace(
                        each,
                        text="".join(token[0] for token in own),
                        tokens=own,
                        length=event["length"],
                        finish_reason=event["finish_reason"],
                        stop_reason=event["stop_reason"],
                        mean_logprob=event.get("mean_logprob"),
                        fingerprint=fingerprint,
                    )
                )
                advance(results.spec.most_tokens(each.setting) - event["length"])
            case "stop" if event["finish_reason"] == "abort":
                each = request.alternatives[event["index"]]
                results.usage.errors.append(f"{each}: aborted: {event['stop_reason']}")
            case "error":
                what = request.alternatives[event["index"]] if "index" in event else request.alternatives[0].prompt
                results.usage.errors.append(f"{what}: {event['error']['message']}")
            case "done":
                results.usage.add(event["usage"])


def _token(event: dict[str, Any]) -> list[Any]:
    """Return the text of a stream event, its log-probability, and the texts and log-probabilities of the top tokens."""
    top = [[each["token"], each["logprob"]] for each in event.get("top_logprobs", ())]
    return [event["text"], event.get("logprob"), top]

"""Whatever the traffic, through HTTP: what each text was drawn from is what the idle server says about this text alone.

As in tests/support/alone.py, with F32 weights, an f32 cache and no flash attention, but over many connections at once,
and compared with the scores of each text, which share nothing. ORACLE_MODEL=FILE looks at a model file, too.
"""

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from alone import TOLERANCE, exact_copy
from real_server import Server
from traffic import Abort, Ask, Program, Step, banned, generate, tokens

from srb.llama.model.model_file import find_model

pytestmark = pytest.mark.e2e

VOCABULARY = range(1000, 20_000)
TOP = 5
EXACT = ("--flash-attn", "off", "--cache-type-k", "f32", "--cache-type-v", "f32")

Events = list[dict[str, Any]]
Text = tuple[int, ...]


class Traffic:
    """The requests of programs, on their way or answered."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session
        self._changed = asyncio.Condition()
        self._tasks: list[asyncio.Task[None]] = []
        self._reading: set[int] = set()  # the names of those that aren't answered yet
        self.bodies: dict[int, dict[str, Any]] = {}
        self.events: dict[int, Events] = {}

    async def run(self, program: Program) -> None:
        """Sends what the program says, where a step is an event of any request, and waits for all to end."""
        for op in program.ops:
            if isinstance(op, Ask):
                self._ask(op)
            elif isinstance(op, Abort):
                await self._abort(op)
            elif isinstance(op, Step):
                await self._wait(self._n_events + op.times)
        await asyncio.gather(*self._tasks)

    @property
    def _n_events(self) -> int:
        return sum(map(len, self.events.values()))

    async def _wait(self, n_events: int) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: self._n_events >= n_events or not self._reading)

    def _ask(self, ask: Ask) -> None:
        prompts = [list(text) for parts in ask.prompts if (text := tokens(parts, VOCABULARY, self._said))]
        if not prompts:
            return
        self.bodies[ask.name] = {
            "prompt": prompts,
            "branches": [_branch(**branch) for branch in ask.branches],
            "echo": ask.echo,
            "cache_prompt": ask.cache_prompt,
            "logprobs": TOP,
            "return_tokens": True,
        }
        self.events[ask.name] = []
        self._reading.add(ask.name)
        self._tasks.append(asyncio.create_task(self._read(ask.name)))

    async def _read(self, name: int) -> None:
        try:
            async with self._session.post("/v1/completions", json=self.bodies[name]) as answer:
                if answer.status == 400:  # it can't fit
                    del self.bodies[name]
                    return
                answer.raise_for_status()
                async for line in answer.content:
                    if line.startswith(b"data: "):
                        self.events[name].append(json.loads(line[6:]))
                        await self._tell()
        finally:
            self._reading.remove(name)
            await self._tell()

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def _abort(self, abort: Abort) -> None:
        events = self.events.get(abort.name)
        if events:  # its `start` has come, and says its id
            index = "" if abort.index is None else f"/choices/{abort.index}"
            await self._session.delete(f"/v1/completions/{events[0]['id']}{index}")

    def _said(self, name: int, index: int) -> Text:
        texts = self.texts(name)
        return texts[index][0] if index < len(texts) else ()

    def texts(self, name: int) -> list[tuple[Text, Events]]:
        """For each alternative, the tokens of its prompt and its answer, and the events of the last of these."""
        body = self.bodies.get(name, {"prompt": [], "branches": []})
        result: list[tuple[Text, Events]] = []
        for index in range(len(body["prompt"]) * len(body["branches"])):
            prompt = tuple(body["prompt"][index // len(body["branches"])])
            said = [each for each in self.events[name] if each["event"] == "stream" and each["index"] == index]
            ids = tuple(each["id"] for each in said)
            result.append(((*prompt, *ids[len(prompt) if body["echo"] else 0 :]), said))
        return result


def _branch(ban: int | None = None, **values: Any) -> dict[str, Any]:
    return {"temperature": 0, "ignore_eos": True, "banned_tokens": list(banned(ban, len(VOCABULARY)))} | values


async def check(session: aiohttp.ClientSession, traffic: Traffic) -> int:
    """Compares all that was said with what the idle server says about it; returns how many tokens that were."""
    known: dict[Text, Events] = {}
    n_tokens = 0
    for name, body in traffic.bodies.items():
        events = traffic.events[name]
        count = len(body["prompt"]) * len(body["branches"])
        ends = sorted(each["index"] for each in events if each["event"] == "stop")
        assert (ends, events[-1]["event"]) == (list(range(count)), "done")
        assert "error" not in {each["event"] for each in events}, events
        for index, (text, said) in enumerate(traffic.texts(name)):
            if said and text not in known:
                known[text] = await _scores(session, text)
            for token, alone in zip(reversed(said), reversed(known.get(text, [])), strict=False):
                assert token["id"] == alone["id"]
                pairs = [(token, alone), *zip(token["top_logprobs"], alone["top_logprobs"], strict=True)]
                off = max(abs((one["logprob"] or 0) - (other["logprob"] or 0)) for one, other in pairs)
                assert off <= TOLERANCE, f"request {name}, alternative {index}: off by {off:.2g} at {token}, {alone}"
                n_tokens += 1
    return n_tokens


async def _scores(session: aiohttp.ClientSession, text: Text) -> Events:
    body = {"prompt": list(text), "n": 1, "max_tokens": 0, "echo": True, "logprobs": TOP, "cache_prompt": False}
    async with session.post("/v1/completions", json=body) as answer:
        lines = (await answer.text()).splitlines()
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
    return [event for event in events if event["event"] == "stream"]


async def look(server: Server, programs: list[Program]) -> None:
    """Runs programs one after the other: the later ones meet what the earlier ones left."""
    timeout = aiohttp.ClientTimeout(total=500)
    async with aiohttp.ClientSession(server.url, timeout=timeout) as session:
        for program in programs:
            traffic = Traffic(session)
            await traffic.run(program)
            assert await check(session, traffic) > 0
    server.wait_until_idle()


async def test_random_traffic(start_server: Callable[..., Server], tmp_path: Path) -> None:
    model = exact_copy(find_model(None), tmp_path)
    options = ("--ctx-size", "1024", "--parallel", "4", "--max-tokens", "20", "--cache-ram", "100")
    server = start_server("--model", str(model), *EXACT, *options)
    await look(server, [generate(seed, 8) for seed in range(2)])


@pytest.mark.skipif("ORACLE_MODEL" not in os.environ, reason="ORACLE_MODEL names no model file")
async def test_random_traffic_on_a_model_file(start_server: Callable[..., Server], tmp_path: Path) -> None:
    model = exact_copy(Path(os.environ["ORACLE_MODEL"]), tmp_path)
    server = start_server("--model", str(model), *EXACT, "--ctx-size", "4096", "--parallel", "4")
    await look(server, [generate(seed, 128) for seed in range(2)])

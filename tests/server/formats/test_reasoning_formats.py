"""Thoughts in each format, streamed and not, on the fake backend, where each byte is a token."""

import json
from typing import Any

import pytest
from fake_backend import END, FakeBackend
from server.conftest import Client, Connect, posted
from server.formats.test_tools import send
from server.routes.test_response_routes import KEPT

from srb.engine.sampling_params import SamplingParams
from srb.llama.model.chat_template import ChatTemplate

TURNS = (
    "{% for m in messages %}<{{ m.role }}>({{ m.reasoning_content }}){{ m.content.split('</think>')[-1] }}\n"
    "{% endfor %}<assistant>"
)
OPEN = TURNS + "{{ '<think>\\n' }}"  # as QwQ's and DeepSeek-R1's
MAYBE = TURNS + "{% if not enable_thinking %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}"  # as Qwen3's
WITHOUT = TURNS.replace("</think>", "---")
HELLO = [{"role": "user", "content": "hi"}]
BOTH = [(OPEN, "Hm,\nso.\n</think>\n\nYes."), (MAYBE, "<think>\nHm,\nso.\n</think>\n\nYes.")]
THOUGHTS, ANSWER = "Hm,\nso.", "Yes."
NO_THOUGHTS = "<user>()hi\n<assistant><think>\n\n</think>\n\n"
ANTHROPIC: dict[str, Any] = {"messages": HELLO, "seed": 0}
OPENAI: dict[str, Any] = {"input": "hi", "seed": 0}


class Spoken:
    """A model that says texts[seed] after a prompt, and knows what it has read and said."""

    def __init__(self, source: str, *texts: str, prompt: str | None = None) -> None:
        template = ChatTemplate(source)
        self.prompt = template.render(HELLO, {"enable_thinking": True}) if prompt is None else prompt
        self.seen = ""
        self._texts = [text.encode() for text in texts]
        self.backend = FakeBackend(n_cells=4096, chat_template=template, script=self._say)

    def _say(self, params: SamplingParams, tokens: tuple[int, ...]) -> int:
        self.seen = bytes(tokens).decode(errors="replace")
        said = len(tokens) - len(self.prompt.encode())
        text = self._texts[params.seed % len(self._texts)]
        return text[said] if 0 <= said < len(text) else END


async def chat(connect: Connect, model: Spoken, **body: Any) -> Any:
    return await send(await connect(model.backend), **{"tools": None, "messages": HELLO} | body)


async def test_anthropics_thinking_may_be_disabled(connect: Connect) -> None:
    for source, _ in BOTH:
        model = Spoken(source, ANSWER, prompt=NO_THOUGHTS)
        client = await connect(model.backend)
        body = ANTHROPIC | {"thinking": {"type": "disabled"}}
        response = await client.post("/v1/messages", json=body)
        assert (await response.json())["content"] == [{"type": "text", "text": ANSWER}]
        assert "x-srb-ignored" not in response.headers
        body["thinking"] = {"type": "enabled", "budget_tokens": 1024}
        assert (await client.post("/v1/messages", json=body)).headers["x-srb-ignored"] == "thinking.budget_tokens"
        body["thinking"] = 5
        assert (await client.post("/v1/messages", json=body)).headers["x-srb-ignored"] == "thinking"
        body["thinking"] = {"type": "disabled"}
        counted = await posted(client, "/v1/messages/count_tokens", body)
        assert counted == {"input_tokens": len(NO_THOUGHTS)}


async def test_a_response_goes_on_from_one_with_thoughts(connect: Connect) -> None:
    text = BOTH[0][1]
    model = Spoken(OPEN, text)
    client = await connect(model.backend, **KEPT)
    first = await posted(client, "/v1/responses", OPENAI)
    second = {"input": "and?", "previous_response_id": first["id"]}
    await posted(client, "/v1/responses", second)
    assert f"<assistant>({THOUGHTS}){ANSWER}\n<user>()and?" in model.seen


async def lines(client: Client, path: str, **body: Any) -> list[dict[str, Any]]:
    response = await client.post(path, json=body | {"options": {"seed": 0}})
    assert response.status == 200, await response.text()
    return [json.loads(line) for line in (await response.text()).splitlines()]


@pytest.mark.parametrize(("source", "text"), BOTH)
async def test_a_prompt_of_ollama(connect: Connect, source: str, text: str) -> None:
    client = await connect(Spoken(source, text).backend)
    for think in ({}, {"think": True}, {"think": "low"}):
        (whole,) = await lines(client, "/api/generate", prompt="hi", stream=False, **think)
        assert (whole["response"], whole["thinking"]) == (ANSWER, THOUGHTS)
    *parts, _last = await lines(client, "/api/generate", prompt="hi")
    assert "".join(part.get("thinking", "") for part in parts) == THOUGHTS
    assert "".join(part["response"] for part in parts) == ANSWER


async def test_ollamas_thoughts_may_be_off(connect: Connect) -> None:
    for source, _ in BOTH:
        client = await connect(Spoken(source, "<think>Yes.", prompt=NO_THOUGHTS).backend)
        (whole,) = await lines(client, "/api/chat", messages=HELLO, stream=False, think=False)
        assert whole["message"] == {"role": "assistant", "content": "<think>Yes."}


async def test_ollamas_clients_see_who_thinks(connect: Connect) -> None:
    for source, thinks in (OPEN, True), (MAYBE, True), (WITHOUT, False):
        client = await connect(Spoken(source, "").backend)
        assert ("thinking" in (await posted(client, "/api/show", {}))["capabilities"]) == thinks


async def test_ollamas_thoughts_of_earlier_messages_reach_the_template(connect: Connect) -> None:
    model = Spoken(OPEN, "Yes.")
    client = await connect(model.backend)
    history = [*HELLO, {"role": "assistant", "content": "Yes", "thinking": "Hm."}, *HELLO]
    await lines(client, "/api/chat", messages=history, stream=False)
    assert "<assistant>(Hm.)Yes\n" in model.seen

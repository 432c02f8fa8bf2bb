"""What every format answers to the same request: its body and its stream, byte for byte, in `answers/`.

`WRITE_ANSWERS=1 pytest tests/server/formats/test_answers.py` writes the files again; then read what has changed.
"""

import os
import re
from pathlib import Path
from typing import Any

import pytest
from fake_backend import END, FakeBackend
from server.conftest import Connect
from server.formats.all_formats import FORMATS, STREAMED, body_of

from srb.engine.sampling_params import SamplingParams
from srb.llama.model.chat_template import ChatTemplate

# Its calls are [name]{...}[/], its thoughts are between <think> and </think>, and what it says comes after <a>.
SOURCE = (
    "{% if tools %}{{ tools | tojson }}{% endif %}"
    "{% for m in messages %}<{{ m.role }}>{{ m.content.split('</think>')[-1] }}"
    "{% for c in m.tool_calls %}[{{ c.function.name }}]{{ c.function.arguments | tojson }}[/]{% endfor %}{% endfor %}"
    "<a>"
)
CHATS = ("chat", "responses", "messages", "ollama chat")
SEVERAL = ("native", "completions", "chat", "llama-server", "kobold")
LOGPROBS: dict[str, dict[str, Any]] = {
    **{each: {"logprobs": 1} for each in ("native", "completions", "kobold")},
    **{each: {"logprobs": True, "top_logprobs": 1} for each in ("chat", "ollama", "ollama chat")},
    "responses": {"top_logprobs": 1},
    "llama-server": {"n_probs": 1},
    "messages": {},
}
FUNCTION = {"name": "time", "parameters": {"type": "object"}}
TOOLS: dict[str, dict[str, Any]] = {
    **{each: {"tools": [{"type": "function", "function": FUNCTION}]} for each in ("chat", "ollama chat")},
    "responses": {"tools": [{"type": "function", **FUNCTION}]},
    "messages": {"tools": [{"name": "time", "input_schema": {"type": "object"}}]},
}
FEW = {"max_tokens": 4, "logit_bias": [[token, False] for token in range(256) if token not in b"abc"]}
USAGE = {"stream_options": {"include_usage": True}}
WITH_USAGE = {"completions": USAGE, "chat": USAGE}

EVERY = tuple(FORMATS)
Row = tuple[tuple[str, ...], tuple[str, ...], dict[str, Any], list[dict[str, dict[str, Any]]]]
ROWS: dict[str, Row] = {
    # What the alternatives say, the formats, sampling fields, and more fields by format.
    "a stop string": (("é|x",), EVERY, {"stop": ["|"]}, [WITH_USAGE, LOGPROBS]),
    "a stop token": (("ab",), ("native", "llama-server", "messages"), {"stop_token_ids": [98]}, []),
    "a limit": (("abc",), EVERY, {"max_tokens": 2}, []),
    "nothing": (("",), EVERY, {}, []),
    "half a character": (("a\udcc3",), ("completions", "chat", "responses"), {}, [LOGPROBS]),
    "thoughts": (("<think>\nHm\n</think>\n\nOh",), CHATS, {}, []),
    "half a thought": (("<think>Hm.</th",), CHATS, {}, []),
    "a call": (("Hm [time]{}[/]",), CHATS, {}, [TOOLS, LOGPROBS]),
    "thoughts and a call": (("<think>Hm</think>[time]{}[/]",), CHATS, {}, [TOOLS]),
    "half a call": (('[time]{"a',), CHATS, {}, [TOOLS]),
    "almost a call": (("Hm [ti",), CHATS, {}, [TOOLS]),
    "a fault": (("a#c",), EVERY, {}, []),
    "a fault in one of two": (("a#", "bc"), SEVERAL, {"n": 2}, []),
    "two": (("a\n", "bc"), SEVERAL, {"n": 2}, [LOGPROBS]),
    "the best of two": (("a", "b"), ("completions", "chat"), {"n": 1, "best_of": 2}, [LOGPROBS]),
    "calls of two": (("[time]{}[/][time]{}[/]", "Hm"), ("chat",), {"n": 2}, [TOOLS]),
    "tokens": (("é|", "b"), SEVERAL, {"n": 2, "stop": ["|"], "return_token_ids": True, "return_tokens": True}, []),
    "an echo": (("a",), ("completions",), {"echo": True, "return_token_ids": True}, [LOGPROBS]),
    "timings": (("ab",), SEVERAL, {"timings_per_token": True, "return_progress": True}, []),
    "a prompt": (("a",), ("native", "completions", "chat"), {"prompt_logprobs": 1, "return_token_ids": True}, []),
    "probabilities": (("a",), ("llama-server",), {"n_probs": 2, "post_sampling_probs": True}, []),
    "a search": (("",), ("native", "completions", "llama-server"), {"search": "beam", "n": 3, **FEW, "top_k": 1}, []),
    "a middle": (("a", "b", "c"), ("completions", "llama-server"), {"suffix": "end", "n": 2, "candidates": 3}, []),
}


class Model(FakeBackend):
    """Says texts[seed] after <a>. A # fails."""

    def __init__(self, texts: tuple[str, ...]) -> None:
        def script(params: SamplingParams, tokens: tuple[int, ...]) -> int:
            text = texts[params.seed % len(texts)].encode(errors="surrogateescape")
            n_said = len(bytes(tokens).rpartition(b"<a>")[2])
            return text[n_said] if n_said < len(text) else END

        super().__init__(
            n_cells=4096, chat_template=ChatTemplate(SOURCE), script=script, poison="#", names_poisoned=True
        )


_MASKED = (
    (r'"(\w*_ms|\w*_per_second|\w*_duration|created|created_at)": (?:[\d.e-]+|"[^"]*")', r'"\1": 0'),
    (r"\b(cmpl|chatcmpl|resp|msg|rs)[-_][0-9a-zA-Z]{16,}", r"\1-ID"),
    (r'"(id|call_id|item_id)": "(fc_)?\w{9}"', r'"\1": "\2CALL"'),
    (r'"system_fingerprint": "[^"]*"', '"system_fingerprint": ""'),
    (r'"generation_settings": {.*?}(?=, "prompt")', '"generation_settings": {}'),
)


def shown(text: str) -> str:
    """An answer without what differs each time, and in each line without what the line before it begins with."""
    for pattern, replacement in _MASKED:
        text = re.sub(pattern, replacement, text)
    lines, before = [], ""
    for line in filter(None, text.split("\n")):
        n = next((k for k, (a, b) in enumerate(zip(before, line, strict=False)) if a != b), 0)
        lines.append(f"{line[:6]}…{line[n:]}" if n > 6 else line)
        before = line
    return "\n".join(lines)


@pytest.mark.parametrize("name", ROWS)
async def test_every_format_has_the_same_answer_in_its_own_way(connect: Connect, name: str) -> None:
    texts, formats, sampling, more = ROWS[name]
    client = await connect(Model(texts))
    found = []
    for each in formats:
        fields = {"seed": 0} | sampling
        path, body = FORMATS[each][0], body_of(each, fields)
        for by_format in more:
            body = body | by_format.get(each, {})
        for streamed in (False,) if each == "native" or "best_of" in fields else (False, True):
            where = path.replace("/v1/generate", "/extra/generate/stream") if streamed else path
            response = await client.post(where, json=body | (STREAMED[each] if streamed else {}))
            heading = f"== {each}{', streamed' if streamed else ''}: {response.status}"
            ignored = response.headers.get("x-srb-ignored")
            found.append(f"{heading}{f', without {ignored}' if ignored else ''}\n{shown(await response.text())}")
    file = Path(__file__).parent / "answers" / f"{name.replace(' ', '_')}.txt"
    if os.environ.get("WRITE_ANSWERS"):
        file.write_text("\n".join(found) + "\n")
    assert "\n".join(found) + "\n" == file.read_text()

"""Names of fields that other servers have too: which one counts, and which one errors have."""

import re
from typing import Any

import pytest
from fake_backend import FakeBackend
from server.conftest import Connect, posted

from srb.errors import InvalidRequestError
from srb.llama.model.chat_template import ChatTemplate
from srb.wire.kobold.body import KoboldFields
from srb.wire.request.read import ALIASES, sent_names

MESSAGES = {"messages": [{"role": "user", "content": "p"}]}
OF_PATH: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "p"},
    "/v1/chat/completions": MESSAGES,
    "/completion": {"prompt": "p"},
    "/infill": {"input_prefix": "p", "input_suffix": "s"},
    "/api/v1/generate": {"prompt": "p"},
    "/v1/responses": {"input": "p"},
    "/v1/messages": MESSAGES,
    "/api/chat": MESSAGES,
    "/api/generate": {"prompt": "p"},
}


@pytest.mark.parametrize("value", [100_000, -5, "x"])
async def test_errors_have_the_name_and_the_number_that_were_sent(connect: Connect, value: Any) -> None:
    client = await connect(FakeBackend(chat_template=ChatTemplate("{{ messages[0].content }}")))
    for path, name in (
        ("/v1/completions", "max_tokens"),
        ("/v1/completions", "max_completion_tokens"),
        ("/v1/chat/completions", "max_completion_tokens"),
        ("/completion", "n_predict"),
        ("/infill", "n_predict"),
        ("/api/v1/generate", "max_length"),
        ("/v1/responses", "max_output_tokens"),
        ("/v1/messages", "max_tokens"),
        ("/api/chat", "num_predict"),
        ("/api/generate", "num_predict"),
    ):
        sent = {"options": {name: value}, "max_length": None} if name == "num_predict" else {name: value}
        response = await client.post(path, json=OF_PATH[path] | sent)
        text = await response.text()
        assert response.status == 400, text
        assert re.search(rf"\b{name}\b", text), text
        assert str(value) in text
        assert name == "max_tokens" or not re.search(r"\bmax_tokens\b", text), text


OWN_NAMES = {
    "/completion": {"n_predict", "n_cmpl"},
    "/api/v1/generate": {
        "max_length",
        "rep_pen",
        "rep_pen_range",
        "sampler_seed",
        "stop_sequence",
        "typical",
        "nsigma",
    },
    "/api/generate": {"num_predict"},
    "/v1/responses": {"max_output_tokens"},
    "/v1/messages": {"stop_sequences"},
    "/v1/completions": set[str](),
}


@pytest.mark.parametrize("path", OWN_NAMES)
async def test_errors_name_the_one_of_two_names_that_counts(connect: Connect, path: str) -> None:
    client = await connect(FakeBackend(chat_template=ChatTemplate("{{ messages[0].content }}")))
    bad = {"nothing": "of this type"}
    own_names = OWN_NAMES[path]
    for alias, name in ALIASES.items():
        counts, other = (alias, name) if alias in own_names else (name, alias)
        sent: dict[str, Any] = {counts: bad, other: 1}
        sent = {"options": sent} if path == "/api/generate" else sent
        response = await client.post(path, json=OF_PATH[path] | sent)
        answer = await response.text()
        if response.status == 200:  # the format doesn't have the field, or any JSON may be a schema
            assert re.search(rf"\b{other}\b", response.headers["x-srb-ignored"]), path
            continue
        assert re.search(rf"\b{counts}\b", answer), f"{path}: {answer}"
        assert not re.search(rf"\b{other}\b", answer), f"{path}: {answer}"


@pytest.mark.parametrize("quoted", ['"no stop"', """'no stop'""", r'"\"stop"', '"a stop that is too lo...'])
def test_what_a_message_quotes_is_not_renamed(quoted: str) -> None:
    error = InvalidRequestError(f"stop can't be {quoted}", param="stop")
    error.rename(sent_names({"stop_sequence": ["no stop"]}, KoboldFields)["stop"])
    assert (str(error), error.param) == (f"stop_sequence can't be {quoted}", "stop_sequence")


@pytest.mark.parametrize("path", ["/v1/responses/input_tokens", "/v1/messages/count_tokens", "/apply-template"])
async def test_ignored_fields_have_the_name_that_was_sent(connect: Connect, path: str) -> None:
    client = await connect(FakeBackend(chat_template=ChatTemplate("{{ messages[0].content }}")))
    sent = {"max_output_tokens": 5, "max_length": 6, "stopping_strings": ["x"]}
    response = await client.post(path, json={"input": "p"} | MESSAGES | sent)
    assert response.status == 200, await response.text()
    ignored = response.headers.get("x-srb-ignored", "").split(", ")
    assert {"max_tokens", "stop"}.isdisjoint(ignored)


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/responses", "/api/chat"])
async def test_formats_with_one_alternative_refuse_more_by_any_name(connect: Connect, path: str) -> None:
    client = await connect(FakeBackend(chat_template=ChatTemplate("{{ messages[0].content }}")))
    assert "n_cmpl is 2" in str(await posted(client, path, OF_PATH[path] | {"n_cmpl": 2}, 400))

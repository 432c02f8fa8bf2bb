"""/v1/chat/completions and /v1/models, on the fake backend."""

import json
import re
from typing import Any

import pytest
from fake_backend import END, FakeBackend, babble, says, score
from server.conftest import Connect

from srb import __version__
from srb.llama.model.chat_template import ChatTemplate

SOURCE = "{% for m in messages %}{{ m.role[0] }}:{{ m.content }}\n{% endfor %}a:{{ mood }}"
HELLO = [{"role": "user", "content": "hi"}]  # "u:hi\na:"
PROMPT = tuple(b"u:hi\na:")


def backend(*texts: bytes, source: str = SOURCE) -> FakeBackend:
    script = says(*texts, prompt=len(PROMPT)) if texts else babble
    return FakeBackend(chat_template=ChatTemplate(source), script=script)


async def chat(connect: Connect, fake: FakeBackend, status: int = 200, **body: Any) -> dict[str, Any]:
    client = await connect(fake)
    response = await client.post("/v1/chat/completions", json={"messages": HELLO, "seed": 0} | body)
    result: dict[str, Any] = await response.json()
    assert response.status == status, result
    return result


async def chunks(connect: Connect, fake: FakeBackend, **body: Any) -> list[Any]:
    client = await connect(fake)
    body = {"messages": HELLO, "stream": True, "seed": 0} | body
    response = await client.post("/v1/chat/completions/", json=body)
    assert response.status == 200, await response.text()
    lines = (await response.text()).split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]


async def prompt(connect: Connect, messages: list[Any], source: str = SOURCE, **body: Any) -> str:
    """What the model gets."""
    reply = await chat(
        connect, backend(source=source), messages=messages, echo=True, max_tokens=0, model="fake", **body
    )
    text: str = reply["choices"][0]["message"]["content"]
    return text


async def test_an_answer_that_nobody_gave_a_length_ends(connect: Connect) -> None:
    def endless() -> FakeBackend:  # one for each engine: an earlier one may not have given its cells back yet
        return FakeBackend(n_cells=1200, chat_template=ChatTemplate(SOURCE), script=lambda params, tokens: 65)

    reply = await chat(connect, endless())
    assert (reply["usage"]["completion_tokens"], reply["choices"][0]["finish_reason"]) == (1024, "length")
    client = await connect(endless())
    body = {"messages": HELLO, "stream": "events", "n": 1}
    async with client.post("/v1/chat/completions", json=body) as answer:
        while not (line := await answer.content.readline()).startswith(b"data: "):
            pass
    start = json.loads(line.removeprefix(b"data: "))
    assert start["max_tokens"] == 1024
    for asked in ({"max_tokens": -1}, {"branches": [{"max_tokens": -1}]}):
        reply = await chat(connect, endless(), **asked)
        assert reply["usage"]["completion_tokens"] == 1200 - len(PROMPT) + 1
    reply = await chat(connect, endless(), branches=[{"max_tokens": 7}, {}])
    assert reply["usage"]["completion_tokens"] == 7 + 1024


async def test_one_object(connect: Connect) -> None:
    reply = await chat(connect, backend(b"ab", b"c##d"), n=2, stop=["##"])
    assert reply.pop("created") > 1_700_000_000
    assert reply.pop("id").startswith("chatcmpl-")
    assert reply.pop("timings")["predicted_n"] == 6
    assert reply == {
        "object": "chat.completion",
        "model": "fake",
        "system_fingerprint": f"srb-{__version__}",
        "choices": [
            {
                "index": index,
                "message": {"role": "assistant", "content": text, "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
                "stop_reason": reason,
            }
            for index, (text, reason) in enumerate((("ab", None), ("c", "##")))
        ],
        "usage": {
            "prompt_tokens": 7,
            "completion_tokens": 6,
            "total_tokens": 13,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
    }
    assert len((await chat(connect, backend(b"a")))["choices"]) == 1


async def test_chunks(connect: Connect) -> None:
    received = await chunks(connect, backend(b"ab", b"c"), n=2, stream_options={"include_usage": True})
    assert {chunk["object"] for chunk in received} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in received}) == 1
    assert received[-1]["choices"] == []
    assert received[-1]["usage"]["completion_tokens"] == 5
    choices = [chunk["choices"][0] for chunk in received[:-1]]
    for index, texts in enumerate((["a", "b"], ["c"])):
        own = [choice for choice in choices if choice["index"] == index]
        assert [choice["delta"] for choice in own] == [
            {"role": "assistant", "content": ""},
            *({"content": text} for text in texts),
            {},
        ]
        assert [choice["finish_reason"] for choice in own] == [None] * (len(own) - 1) + ["stop"]


@pytest.mark.parametrize("stream", [True, False])
async def test_logprobs(connect: Connect, stream: bool) -> None:
    body: dict[str, Any] = {"logprobs": True, "top_logprobs": 2, "stop": ["##"]}
    fake = backend("é!##".encode())
    if stream:
        choices = [chunk["choices"][0] for chunk in await chunks(connect, fake, **body)]
        content = [token for choice in choices for token in choice["logprobs"]["content"]]
    else:
        content = (await chat(connect, fake, **body))["choices"][0]["logprobs"]["content"]
    assert [token["token"] for token in content] == ["bytes:\\xc3", "bytes:\\xa9", "!"]
    assert [token["bytes"] for token in content] == [[0xC3], [0xA9], [33]]
    assert content[0]["logprob"] == score(PROMPT, 0xC3)
    for token in content:
        assert [set(top) for top in token["top_logprobs"]] == [{"id", "token", "bytes", "logprob"}] * 2


async def test_logprobs_without_others_and_without_any(connect: Connect) -> None:
    reply = await chat(connect, backend(b"a"), logprobs=True)
    assert reply["choices"][0]["logprobs"]["content"][0]["top_logprobs"] == []
    reply = await chat(connect, backend(b"a"), logprobs=False, top_logprobs=0)
    assert reply["choices"][0]["logprobs"] is None


async def test_native_events_of_a_conversation(connect: Connect) -> None:
    client = await connect(backend(b"ab", b"c"))
    for path in ("/v1/chat/completions", "/v1/completions"):
        body = {"messages": HELLO, "stream": "events", "branches": [{}, {"seed": 1}], "seed": 0}
        response = await client.post(path, json=body)
        blocks = (await response.text()).split("\n\n")[:-1]
        events = [json.loads(block.partition("data: ")[2]) for block in blocks]
        assert [event["event"] for event in events if event["event"] != "stream"] == ["start", "stop", "stop", "done"]
        assert "".join(event["text"] for event in events if event.get("index") == 0 and "text" in event) == "ab"


async def test_messages_in_place_of_the_prompt_of_a_completion(connect: Connect) -> None:
    client = await connect(backend(b"ab"))
    response = await client.post("/v1/completions", json={"messages": HELLO, "model": "fake", "seed": 0})
    assert (await response.json())["choices"][0]["text"] == "ab"


async def test_what_the_template_gets(connect: Connect) -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert await prompt(connect, [{"role": "user", "content": parts}]) == "u:one\ntwo\na:"
    assert await prompt(connect, HELLO, chat_template_kwargs={"mood": "glad"}) == "u:hi\na:glad"
    assert await prompt(connect, [{"role": "developer", "content": "x"}]) == "s:x\na:"
    knows_developers = "{% if messages[0].role == 'developer' %}yes{% endif %}"
    assert await prompt(connect, [{"role": "developer", "content": "x"}], source=knows_developers) == "yes"


async def test_an_unfinished_message_of_the_assistant_is_continued(connect: Connect) -> None:
    assert await prompt(connect, [*HELLO, {"role": "assistant", "content": "Well, "}]) == "u:hi\na:Well, "


async def test_fields_of_openai_without_effect_are_named(connect: Connect) -> None:
    client = await connect(backend())
    names = ["user", "store", "metadata", "reasoning_effort", "service_tier", "parallel_tool_calls", "tool_choice"]
    body = {"messages": HELLO, "max_completion_tokens": 1, "tools": [], **dict.fromkeys(names, "x")}
    response = await client.post("/v1/chat/completions", json=body)
    assert response.headers["x-srb-ignored"] == ", ".join(names)
    body = {"prompt": "p", "model": "fake", "chat_template_kwargs": {}}
    response = await client.post("/v1/completions", json=body)
    assert response.headers["x-srb-ignored"] == "chat_template_kwargs"


IMAGE = {"type": "image_url", "image_url": {"url": "data:,"}}

BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"messages": None}, "messages", "messages is missing"),
    ({"messages": []}, "messages", "must not be empty"),
    ({"messages": "hi"}, "messages", "list"),
    ({"messages": ["hi"]}, "messages[0]", "an object"),
    ({"messages": [{"content": "hi"}]}, "messages[0].role", "required"),
    ({"messages": [{"role": 5, "content": "hi"}]}, "messages[0].role", "string"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content", "string"),
    ({"messages": [{"role": "user", "content": [IMAGE]}]}, "messages[0].content", "should have a URL"),
    ({"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]}, "messages[0].content", "part 0"),
    ({"messages": [{"role": "user", "content": ["hi"]}]}, "messages[0].content", "part 0"),
    ({"messages": [{"role": "user", "content": "\ud800"}]}, "prompt", "not valid Unicode"),
    ({"messages": [*HELLO, *[{"role": "assistant", "content": "a"}] * 2]}, "messages", "two messages of the assistant"),
    ({"prompt": "hi"}, "prompt", "exclude each other"),
    ({"functions": [{"name": "f"}], "function_call": {"name": "f"}}, "function_call", "send tools and tool_choice"),
    ({"top_logprobs": 5}, "top_logprobs", '"logprobs": true'),
    ({"logprobs": True, "top_logprobs": 101}, "logprobs", "from 0 to 100"),
    ({"chat_template_kwargs": {"tools": []}}, "chat_template_kwargs", "can't set tools"),
    ({"suffix": "x"}, "suffix", "not supported in chats"),
    ({"chat_template_kwargs": []}, "chat_template_kwargs", "dictionary"),
    ({"response_format": {"type": "yaml"}}, "response_format", "json_object"),
    ({"n": 9}, "n", "from 1 to 8"),
    ({"n": 4, "best_of": 5, "stream": True}, "best_of", "stream"),
]


async def test_bad_input_is_refused(connect: Connect, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    client = await connect(fake := backend(b"a"))
    for body, param, message in BAD:
        response = await client.post("/v1/chat/completions", json={"messages": HELLO} | body)
        case = f"{str(body)[:80]} -> {await response.text()}"
        assert response.status == 400, case
        error = (await response.json())["error"]
        assert error["type"] == "invalid_request_error", case
        assert error["param"] == param, case
        assert message in error["message"], case
    assert fake.decodes == 0
    assert "hi" not in re.findall(r"\w+", caplog.text)  # messages are prompts, and these aren't logged


async def test_a_prompt_that_is_too_long_is_refused_as_by_llama_server(connect: Connect) -> None:
    client = await connect(backend())
    long = "x" * 300
    messages = [{"role": "user", "content": long}]
    for path, body, n in (
        ("/v1/chat/completions", {"messages": messages}, 305),
        ("/v1/chat/completions", {"messages": messages, "stream": True}, 305),
        ("/completion", {"prompt": long}, 300),
        ("/v1/completions", {"prompt": list(long.encode())}, 300),
    ):
        response = await client.post(path, json=body)
        error = (await response.json())["error"]
        assert (response.status, error["type"], error["code"]) == (
            *(400, "exceed_context_size_error"),
            "context_length_exceeded",
        )
        assert (error["n_prompt_tokens"], error["n_ctx"], error["param"]) == (n, 256, "prompt")
        assert f"{n} tokens, more than the 256 cells" in error["message"]


async def test_timings_and_progress_as_llama_server_tells_them(connect: Connect) -> None:
    timings = (await chat(connect, backend(b"ab", b"abc"), n=2))["timings"]
    assert (timings["cache_n"], timings["prompt_n"], timings["predicted_n"]) == (0, 7, 7)
    assert timings["prompt_per_second"] > 0
    body = {"n": 2, "return_progress": True, "stream_options": {"include_usage": True}}
    received = await chunks(connect, backend(b"ab", b"abc"), **body)
    progress = [chunk["prompt_progress"] for chunk in received if "prompt_progress" in chunk]
    assert [(each["processed"], each["total"], each["cache"]) for each in progress] == [(0, 7, 0), (7, 7, 0)]
    assert all(each["time_ms"] >= 0 for each in progress)
    assert [chunk["choices"][0]["delta"] for chunk in received if "prompt_progress" in chunk] == [{}, {}]
    got = [chunk for chunk in received if "timings" in chunk]
    ends = {choice["index"]: each["timings"]["predicted_n"] for each in got for choice in each["choices"]}
    assert ends == {0: 3, 1: 4}
    assert got[-1] == received[-1]
    assert received[-1]["timings"]["predicted_n"] == 7


async def test_timings_with_each_chunk(connect: Connect) -> None:
    received = await chunks(connect, backend("aé".encode(), b"bcd"), n=2, timings_per_token=True)
    got = [(each["choices"][0], each["timings"]) for each in received if each["choices"][0]["delta"].get("content")]
    counts = [[times["predicted_n"] for choice, times in got if choice["index"] == index] for index in (0, 1)]
    assert counts == [[1, 3], [1, 2, 3]]
    assert all((times["cache_n"], times["prompt_n"]) == (0, 7) for _, times in got)
    client = await connect(backend(b"ab"))
    response = await client.post("/v1/chat/completions", json={"messages": HELLO, "timings_per_token": True})
    assert response.headers["x-srb-ignored"] == "timings_per_token"


@pytest.mark.parametrize("stream", [True, False])
async def test_the_end_token_has_its_probability(connect: Connect, stream: bool) -> None:
    body: dict[str, Any] = {"logprobs": True, "top_logprobs": 1}
    if stream:
        choices = [chunk["choices"][0] for chunk in await chunks(connect, backend(b"ab"), **body)]
        content = [token for choice in choices for token in choice["logprobs"]["content"]]
        assert choices[-1]["delta"] == {}
    else:
        content = (await chat(connect, backend(b"ab"), **body))["choices"][0]["logprobs"]["content"]
    assert [token["token"] for token in content] == ["a", "b", "<END>"]
    assert content[2]["logprob"] == score((*PROMPT, *b"ab"), END)


async def test_without_any_template_a_chat_is_refused(connect: Connect) -> None:
    reply = await chat(connect, FakeBackend(), 400)
    assert reply["error"]["code"] == "no_chat_template"
    assert "--chat-template none; send a prompt to /v1/completions" in reply["error"]["message"]


async def test_what_ends_a_message_by_the_template_ends_it_as_the_requests_own_does(connect: Connect) -> None:
    template = ChatTemplate(SOURCE, stop=("\nUser:",))
    fake = FakeBackend(chat_template=template, script=says(b"Hi.\nUser: b", b"a##b", prompt=len(PROMPT)))
    choices = (await chat(connect, fake, n=2, stop="##"))["choices"]
    assert [choice["message"]["content"] for choice in choices] == ["Hi.", "a"]


async def test_a_template_that_refuses_says_why(connect: Connect) -> None:
    reply = await chat(connect, backend(source="{{ raise_exception('system first') }}"), 400)
    assert reply["error"]["message"] == "the model's chat template can't take these messages: system first"


async def test_one_broken_alternative_leaves_its_siblings_their_stream(connect: Connect) -> None:
    body: dict[str, Any] = {"branches": [{"label": "broken"}, {"seed": 0}]}
    received = await chunks(connect, backend(b"ab"), **body)
    ends = [chunk["choices"][0] for chunk in received if chunk["choices"][0]["finish_reason"]]
    assert {end["index"]: end["finish_reason"] for end in ends} == {0: "error", 1: "stop"}
    errors = {end["index"]: end["error"]["message"] for end in ends if "error" in end}
    assert errors == {0: "this sampler is broken"}
    choices = (await chat(connect, backend(b"ab"), **body))["choices"]
    assert choices[0]["error"]["message"] == "this sampler is broken"
    assert choices[1]["message"]["content"] == "ab"


async def test_models(connect: Connect) -> None:
    client = await connect(FakeBackend())
    model = await (await client.get("/v1/models/fake")).json()
    assert (model["id"], model["object"], model["owned_by"]) == ("fake", "model", "llamacpp")
    assert await (await client.get("/v1/models/fake/")).json() == model
    for path in ("/v1/models", "/v1/models/", "/models"):
        assert await (await client.get(path)).json() == {"object": "list", "data": [model]}
    response = await client.get("/v1/models/org/other")
    assert response.status == 404
    error = (await response.json())["error"]
    assert error["code"] == "model_not_found"
    assert "no model org/other; there is fake" in error["message"]


@pytest.mark.parametrize("stream", [True, False])
async def test_prompt_logprobs_are_the_responses(connect: Connect, stream: bool) -> None:
    text = await prompt(connect, HELLO)
    body: dict[str, Any] = {"prompt_logprobs": 1, "n": 2, "max_tokens": 1}
    if stream:
        replies = await chunks(connect, backend(), **body)
    else:
        replies = [await chat(connect, backend(), model="fake", **body)]
    found = [each for reply in replies for each in reply.get("prompt_logprobs", [])]
    assert found[0] is None
    assert all(str(byte) in (each or {}) for each, byte in zip(found[1:], text.encode()[1:], strict=True))
    assert all("prompt_logprobs" not in choice for reply in replies for choice in reply["choices"])


@pytest.mark.parametrize("stream", [True, False])
async def test_token_ids_are_vllms(connect: Connect, stream: bool) -> None:
    body: dict[str, Any] = {"return_token_ids": True, "n": 2}
    if stream:
        replies = await chunks(connect, backend(b"one", b"two"), **body)
    else:
        replies = [await chat(connect, backend(b"one", b"two"), model="fake", **body)]
    assert [reply["prompt_token_ids"] for reply in replies if "prompt_token_ids" in reply] == [[*PROMPT]]
    assert replies[0]["prompt_token_ids"]
    found: dict[int, list[int]] = {}
    for choice in (choice for reply in replies for choice in reply["choices"]):
        assert "prompt_token_ids" not in choice
        found.setdefault(choice["index"], []).extend(choice["token_ids"])
    assert found == {0: [*b"one", END], 1: [*b"two", END]}


async def test_prompt_logprobs_are_a_native_event(connect: Connect) -> None:
    client = await connect(backend())
    body = {"messages": HELLO, "stream": "events", "n": 2, "prompt_logprobs": 1, "max_tokens": 1}
    lines = (await (await client.post("/v1/chat/completions", json=body)).text()).split("\n\n")
    events = [json.loads(line.partition("data: ")[2]) for line in lines if "data: {" in line]
    scored = [event for event in events if event["event"] == "prompt_logprobs"]
    tokens = [token for event in scored for token in event["tokens"]]
    assert {tuple(event["indices"]) for event in scored} == {(0, 1)}
    assert len(tokens) == events[0]["prompt_tokens"]
    assert tokens[0]["logprob"] is None
    assert all(token["rank"] >= 1 and len(token["top_logprobs"]) == 1 for token in tokens[1:])

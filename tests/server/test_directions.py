"""Directions: a line that only one alternative's prompt has. Over HTTP, on the fake backend."""

from typing import Any

import pytest
from fake_backend import END, FakeBackend
from server.conftest import Client, Connect, events_of, refused

from srb.engine.sampling_params import SamplingParams
from srb.llama.model.chat_template import ChatTemplate

SOURCE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>\n{% endfor %}<assistant>"
HEAD = "Anna waits at the station, and reads.\n\n"
TAIL = "The door"
NOTES = {"she lies": "x", "slower": "y", "": "z"}


class Reads:
    """A script. An alternative says one letter, which depends on its direction; prompts are what the model reads."""

    def __init__(self) -> None:
        self.prompts: dict[int, str] = {}

    def __call__(self, params: SamplingParams, tokens: tuple[int, ...]) -> int:
        text = bytes(tokens).decode()
        if params.seed in self.prompts:
            return END
        self.prompts[params.seed] = text
        found = next((note for note in NOTES if note and note in text), "")
        return ord(NOTES[found])


@pytest.fixture
def reads() -> Reads:
    return Reads()


@pytest.fixture
async def client(connect: Connect, reads: Reads) -> Client:
    return await connect(FakeBackend(n_cells=1024, script=reads, chat_template=ChatTemplate(SOURCE)))


async def events(client: Client, path: str = "/v1/completions", **body: Any) -> list[dict[str, Any]]:
    answer = await client.post(path, json={"stream": "events", "seed": 0} | body)
    text = await answer.text()
    assert answer.status == 200, text
    return events_of(text)


def texts(found: list[dict[str, Any]]) -> list[str]:
    count = found[0]["count"]
    return ["".join(e["text"] for e in found if e["event"] == "stream" and e["index"] == k) for k in range(count)]


async def test_each_alternative_reads_its_own_line_before_the_last_line_of_the_prompt(
    client: Client, reads: Reads
) -> None:
    found = await events(client, prompt=HEAD + TAIL, directions=[*NOTES])
    assert found[0]["labels"] == ["she lies", "slower", None]
    assert found[0]["ignored"] == []
    assert texts(found) == ["x", "y", "z"]
    assert reads.prompts == {
        0: f"{HEAD}[Author's note: she lies]\n{TAIL}",
        1: f"{HEAD}[Author's note: slower]\n{TAIL}",
        2: HEAD + TAIL,
    }


async def test_what_is_before_the_lines_is_evaluated_once_and_the_usage_says_so(client: Client, reads: Reads) -> None:
    done = (await events(client, prompt=HEAD + TAIL, directions=[*NOTES]))[-1]
    assert done["usage"]["prompt_tokens"] == sum(map(len, reads.prompts.values()))
    evaluated = done["usage"]["prompt_tokens"] - done["usage"]["cached_tokens"]
    own = [len(text) - len(HEAD) for text in reads.prompts.values()]
    common = len("[Author's note: s")  # so the two lines begin alike, too
    assert evaluated == done["timings"]["prompt_n"] == len(HEAD) + sum(own) - common


@pytest.mark.parametrize("prompt", [TAIL, HEAD, [*(HEAD + TAIL).encode()], [*HEAD.encode(), TAIL], "a" * 300])
async def test_prompts_of_one_line_of_tokens_and_those_that_end_with_a_line(
    client: Client, reads: Reads, prompt: Any
) -> None:
    await events(client, prompt=prompt, directions=["slower"])
    sent = prompt if isinstance(prompt, str) else HEAD + TAIL
    place = max(sent.rfind("\n") + 1, len(sent) - 256)
    assert reads.prompts[0] == f"{sent[:place]}[Author's note: slower]\n{sent[place:]}"


async def test_echo_shows_the_prompt_without_the_line(client: Client) -> None:
    body = {"prompt": HEAD + TAIL, "directions": ["she lies", "slower"], "echo": True, "seed": 0, "stream": False}
    answer = await (await client.post("/openai/v1/completions", json=body)).json()
    assert [each["text"] for each in answer["choices"]] == [f"{HEAD}{TAIL}x", f"{HEAD}{TAIL}y"]


async def test_log_probabilities_are_those_of_the_text_alone(client: Client) -> None:
    body = {"prompt": HEAD + TAIL, "directions": ["she lies", "slower"], "logprobs": 1, "seed": 0, "stream": False}
    answer = await (await client.post("/openai/v1/completions", json=body)).json()
    assert [each["logprobs"]["tokens"][0] for each in answer["choices"]] == ["x", "y"]
    assert {each["logprobs"]["text_offset"][0] for each in answer["choices"]} == {0}


async def test_in_a_chat_it_is_the_last_line_of_the_users_message(client: Client, reads: Reads) -> None:
    messages = [{"role": "user", "content": "Tell of Anna."}, {"role": "assistant", "content": "She"}]
    body = {"messages": messages, "directions": ["she lies", None], "stream": False, "seed": 0}
    answer = await (await client.post("/v1/chat/completions", json=body)).json()
    assert [each["message"]["content"] for each in answer["choices"]] == ["x", "z"]
    assert reads.prompts == {
        0: "<user>Tell of Anna.\n\n[Author's note: she lies]</>\n<assistant>She",
        1: "<user>Tell of Anna.</>\n<assistant>She",
    }


@pytest.mark.parametrize("source", [SOURCE, SOURCE.replace("m.content", "m.content | trim")])
async def test_without_a_line_a_chat_is_read_as_if_there_were_no_directions(
    connect: Connect, reads: Reads, source: str
) -> None:
    client = await connect(FakeBackend(n_cells=1024, script=reads, chat_template=ChatTemplate(source)))
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "Tell of Anna. "}], "stream": False, "seed": 0}
    await client.post("/v1/chat/completions", json=body)
    (plain,) = reads.prompts.values()
    reads.prompts.clear()
    await client.post("/v1/chat/completions", json=body | {"directions": ["", "she lies"]})
    assert reads.prompts[0] == plain
    assert "Tell of Anna.\n\n[Author's note: she lies]" in reads.prompts[1]


async def test_branches_have_directions_with_their_own_settings_and_the_other_routes_know_them(
    client: Client, reads: Reads
) -> None:
    branches = [{"direction": "she lies", "label": "liar", "seed": 5}, {"seed": 6}]
    found = await events(client, prompt=HEAD + TAIL, direction="slower", branches=branches)
    assert found[0]["labels"] == ["liar", "slower"]
    assert texts(found) == ["x", "y"]
    reads.prompts.clear()
    body = {"prompt": HEAD + TAIL, "directions": ["she lies", "slower"], "seed": 0}
    answer = await (await client.post("/completion", json=body)).json()
    assert [each["content"] for each in answer] == ["x", "y"]
    assert [each["tokens_evaluated"] for each in answer] == [len(text) for text in reads.prompts.values()]
    assert [each["tokens_cached"] for each in answer] == [each["timings"]["cache_n"] for each in answer]
    assert min(each["tokens_cached"] for each in answer) >= 0


async def test_the_last_token_is_healed_after_the_line(client: Client, reads: Reads) -> None:
    found = await events(client, prompt=HEAD + TAIL, directions=["she lies"], heal=True)
    assert found[-1]["event"] == "done"
    assert reads.prompts[0].startswith(f"{HEAD}[Author's note: she lies]\nThe doo")


@pytest.mark.parametrize(
    ("sent", "param", "message"),
    [
        ({"directions": []}, "directions", "at least one text"),
        ({"directions": "slower"}, "directions", "list"),
        ({"directions": [5]}, "directions[0]", "string"),
        ({"directions": ["x", "x" * 1001]}, "directions[1]", "up to 1000 characters, got 1001; shorten it"),
        ({"direction": "x" * 1001}, "direction", "direction takes texts of up to 1000 characters"),
        ({"branches": [{}, {"direction": "x" * 1001}]}, "branches[1].direction", "branches[1].direction takes"),
        ({"directions": ["x", "\ud800"]}, "directions[1]", "not valid Unicode"),
        ({"directions": ["x"] * 9}, "directions", "the number of directions must be from 1 to 8, got 9"),
        ({"directions": ["x"], "n": 2}, "directions", "n is 2, but directions has 1"),
        ({"directions": ["x"], "branches": [{}]}, "directions", "give each branch a direction"),
        ({"directions": ["x"], "direction": "y"}, "directions", "direction and directions exclude"),
        ({"directions": ["x"], "best_of": 2, "stream": False}, "directions", "best_of"),
        ({"directions": ["x"], "search": "beam"}, "direction", "direction and a beam search exclude"),
        ({"directions": ["x"], "max_tokens": 1020}, "max_tokens", "max_tokens is too high"),
    ],
)
async def test_what_does_not_go_together_is_refused(
    client: Client, sent: dict[str, Any], param: str, message: str
) -> None:
    await refused(client, "/v1/completions", {"prompt": "p"} | sent, param, message)


async def test_a_chat_needs_a_message_of_the_user(client: Client) -> None:
    body = {"messages": [{"role": "system", "content": "Be brief."}], "directions": ["x"]}
    await refused(client, "/v1/chat/completions", body, "directions", "add one")

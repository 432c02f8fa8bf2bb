"""vLLM's `stop_token_ids`, `include_stop_str_in_output` and `bad_words` in all formats. On the fake backend."""

import json
from typing import Any

from fake_backend import END, ByteTokenizer, FakeBackend
from server.conftest import Connect
from server.formats.all_formats import HELLO, in_all_formats, text_of, writes

from srb.llama.model.chat_template import ChatTemplate


class Tokenizer(ByteTokenizer):
    """Its token 1 is a special one, and the BOS that prompts begin with."""

    def tokenize(self, text: str, *, is_prompt: bool = True, parse_special: bool = True) -> tuple[int, ...]:
        return (1, *text.encode()) if is_prompt else tuple(text.encode())

    def detokenize(self, tokens: Any) -> bytes:
        return b"".join(b"<s>" if token == 1 else self.special_piece(token) for token in tokens)

    def piece(self, token: int) -> bytes:
        return b"" if token == 1 else super().piece(token)

    def special_piece(self, token: int) -> bytes:
        return b"" if token == 1 else super().special_piece(token)


def backend(text: bytes) -> FakeBackend:
    made = FakeBackend(n_cells=4096, chat_template=ChatTemplate("{{ messages[0].content }}>"), script=writes(text))
    made.tokenizer = Tokenizer()
    return made


@in_all_formats
async def test_a_stop_token_ends_the_text_before_its_own(connect: Connect, name: str) -> None:
    client = await connect(backend(b"abcd"))
    assert await text_of(client, name, stop_token_ids=[ord("c")]) == "ab"
    if name == "native":
        assert await text_of(client, name, stop_token_ids=["99", None, 5]) == "ab"
        assert await text_of(client, name, stop_token_ids=[]) == "abcd"
        assert await text_of(client, name, stop_token_ids=[ord("c")], include_stop_str_in_output=True) == "abc"
        assert await text_of(client, name, stop_token_ids=[ord("c")], stop=["bcd"]) == "ab"


@in_all_formats
async def test_the_text_may_end_with_the_stop_string(connect: Connect, name: str) -> None:
    client = await connect(backend("a™b\x01c".encode()))
    every = ((["™b"], "a™b"), (["a™bc", "™"], "a™"), (["<s>"], "a™b<s>"), (["x"], "a™bc"))
    for stop, text in every if name == "native" else every[:1]:
        assert await text_of(client, name, stop=stop, include_stop_str_in_output=True) == text
        assert await text_of(client, name, stop=stop) == (text.removesuffix(stop[-1]) if stop != ["x"] else text)
    # "b" is taken back before the stop string is known.
    fields = {"stop": ["c"], "include_stop_str_in_output": True, "banned_strings": ["b"]}
    assert await text_of(client, name, **fields) == "a™c"


@in_all_formats
async def test_bad_words_are_not_written(connect: Connect, name: str) -> None:
    client = await connect(backend(b"a cat, the cats /x/"))
    every = (
        (["cat"], "a dat, the cats /x/"),
        ([" cat", "", None], "a dat, the cats /x/"),
        (["ca", "at", "Cat"], "a cat, the cats /x/"),
        (["/x/", "cats"], "a cat, the dats 0x/"),
        (["(?i)CAT"], "a cat, the cats /x/"),
        ("cat", "a dat, the cats /x/"),
    )
    for words, text in every if name == "native" else every[:1]:
        assert await text_of(client, name, bad_words=words) == text, words


async def test_which_token_stopped_a_text(connect: Connect) -> None:
    client = await connect(backend(b"ab\0cd"))
    body = {"prompt": "p>", "n": 1, "seed": 0}
    for token, text in ((0, "ab"), (99, "ab\0"), (END, "ab\0cd")):
        events = await (await client.post("/v1/completions", json=body | {"stop_token_ids": [token]})).text()
        stop = next(json.loads(line[6:]) for line in events.split("\n") if '"stop"' in line)
        reason = None if token == END else token
        assert (stop["stop"], stop["finish_reason"], stop["stop_reason"]) == (1, "stop", reason)
        choice = await (await client.post("/completion", json=body | {"stop_token_ids": [token]})).json()
        assert (choice["content"], choice["stop_type"], choice["stopping_word"]) == (text, "eos", "")
        message = {"messages": HELLO, "max_tokens": 9, "stop_token_ids": [token]}
        answer = await (await client.post("/v1/messages", json=message)).json()
        assert (answer["stop_reason"], answer["stop_sequence"]) == ("end_turn", None)


async def test_a_chat_templates_own_stop_strings_are_never_shown(connect: Connect) -> None:
    made = backend(b"ab#cd|")
    made.chat_template = ChatTemplate("{{ messages[0].content }}>", stop=("#", "|"))
    client = await connect(made)
    assert await text_of(client, "chat", include_stop_str_in_output=True) == "ab"
    assert await text_of(client, "chat", include_stop_str_in_output=True, stop="b") == "ab"
    assert await text_of(client, "chat", include_stop_str_in_output=True, stop="#") == "ab#"

"""llama-server's routes, on the default model."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from real_server import Server

PROMPT = "I believe the meaning of life is"


def post(server: Server, path: str, **body: Any) -> Any:
    status, text = server.request(path, body)
    assert status == 200, text
    return json.loads(text)


@pytest.mark.parametrize("path", ["/completion", "/v1/completions"])
def test_all_seeds_report_what_the_grammar_leaves(server: Server, path: str) -> None:
    body = {"prompt": "Is it?", "grammar": 'root ::= ("yes" | "no") "."', "temperature": 1, "post_sampling_probs": True}
    body |= {"n_probs": 5, "n_predict": 1, "stream": False} | ({"model": "m"} if path != "/completion" else {})
    reported = set()
    for seed in range(10):
        answer = post(server, path, **body, seed=seed)
        if path == "/completion":
            tops = {top["token"]: top["prob"] for top in answer["completion_probabilities"][0]["top_probs"]}
        else:
            content = answer["choices"][0]["logprobs"]["content"]
            tops = {top["token"]: math.exp(top["logprob"]) for top in content[0]["top_logprobs"]}
        assert all("yes".startswith(token) or "no".startswith(token) for token in tops)
        assert sum(tops.values()) == pytest.approx(1, abs=1e-4)
        reported.add(tuple(sorted((token, round(prob, 5)) for token, prob in tops.items())))
    assert len(reported) == 1


def test_tokens_and_their_pieces(server: Server) -> None:
    text = "What is the capital of France? 媽 🤗"
    tokens = post(server, "/tokenize", content=text)["tokens"]
    assert post(server, "/detokenize", tokens=tokens)["content"] == text
    pieces = post(server, "/tokenize", content=text, with_pieces=True)["tokens"]
    assert [each["id"] for each in pieces] == tokens
    data = [each["piece"].encode() if isinstance(each["piece"], str) else bytes(each["piece"]) for each in pieces]
    assert b"".join(data).decode() == text
    special = post(server, "/tokenize", content="<|im_end|>")["tokens"]
    assert post(server, "/detokenize", tokens=special)["content"] == "<|im_end|>"
    assert len(special) == 1 < len(post(server, "/tokenize", content="<|im_end|>", parse_special=False)["tokens"])


def test_what_the_server_is(server: Server) -> None:
    props = json.loads(server.request("/props")[1])
    assert props["model_path"].endswith(".gguf")
    assert "<|im_start|>" in props["chat_template"]
    assert (props["bos_token"], props["eos_token"]) == ("<|im_start|>", "<|im_end|>")
    slots = json.loads(server.request("/slots")[1])
    assert len(slots) == props["total_slots"]
    assert not any(slot["is_processing"] for slot in slots)
    assert server.request("/infill", {"input_prefix": "a", "input_suffix": "b", "n_predict": 4})[0] == 200


def test_a_slot_outlives_the_server(start_server: Callable[..., Server], tmp_path: Path) -> None:
    """As llama.cpp's own test_slot_save.py does it, with a prompt that is long enough to be kept."""
    france, germany = (
        f"Tell me in a few words, as you would tell a child of six or seven: what is the capital of {name}?"
        for name in ("France", "Germany")
    )
    body = {"n_predict": 16, "temperature": 0, "ignore_eos": True}

    def complete(server: Server, prompt: str, slot: int) -> tuple[str, int]:
        result = post(server, "/completion", prompt=prompt, id_slot=slot, **body)
        return result["content"], result["timings"]["prompt_n"]

    server = start_server("--slot-save-path", str(tmp_path))
    said, n_tokens = complete(server, france, 1)
    saved = post(server, "/slots/1?action=save", filename="slot1.bin")
    assert saved["n_saved"] == n_tokens + 15
    assert saved["n_written"] == (tmp_path / "slot1.bin").stat().st_size
    about_germany, n_new = complete(server, germany, 1)
    assert n_new <= 3  # what is different in it
    server.stop()

    server = start_server("--slot-save-path", str(tmp_path))
    restored = post(server, "/slots/0?action=restore", filename="slot1.bin")
    assert (restored["n_restored"], restored["n_read"]) == (n_tokens + 15, saved["n_written"])
    assert complete(server, france, 0) == (said, 0)
    assert complete(server, germany, 1) == (about_germany, n_new)
    for slot in (0, 1):
        assert post(server, f"/slots/{slot}?action=erase")["n_erased"] == n_tokens + 15
    assert complete(server, france, 0) == (said, n_tokens)
    (tmp_path / "slot1.bin").write_bytes(b"ggsq" + bytes(1000))
    status, text = server.request("/slots/0?action=restore", {"filename": "slot1.bin"})
    assert (status, "it isn't the file of a slot" in text) == (400, True)
    assert server.health()["status"] == "ok"

"""Inputs that end a process if llama.cpp sees them: each is refused, or survived, and the next request is served."""

from typing import Any

import pytest
from real_server import Server

CHAIN = {"$defs": {**{f"{k}": {"$ref": f"#/$defs/{k + 1}"} for k in range(3000)}, "3000": {}}, "$ref": "#/$defs/0"}

REFUSED: dict[str, dict[str, Any]] = {
    "a grammar that refuses every token": {"grammar": "root ::= [^\\x00-\\U0010FFFF]"},
    "a grammar of 2,000 parts that may be left out": {"grammar": "root ::= " + '"a"? ' * 2000},
    "an ambiguous grammar with large counts": {"grammar": 'root ::= root "b" | (([a-z]{0,99}){0,99}){0,99}'},
    "a token id out of range": {"prompt": [49_152]},
    "a negative token id": {"prompt": [-1]},
    "huge repeat_last_n": {"repeat_last_n": 2**40, "repeat_penalty": 1.1},
    "huge dry_penalty_last_n": {"dry_penalty_last_n": 2**40, "dry_multiplier": 1},
    "a schema nested too deeply": {"json_schema": '{"items": ' * 900 + "{}" + "}" * 900},
    "a regular expression that takes long": {"grammar": "%llguidance {}\nstart: /" + "a?" * 10_000 + "/"},
    "a grammar with too many rules": {"grammar": "%llguidance {}\nstart: " + '"a"? ' * 50_000},
}

SURVIVED: dict[str, dict[str, Any]] = {
    "an end that the grammar doesn't allow": {"grammar": 'root ::= "x" root', "ban_eos_token": False},
    "a grammar at its end that may not end": {"grammar": 'root ::= "x"', "ignore_eos": True},
    "a schema of a large array": {"json_schema": {"type": "array", "minItems": 10**9}},
    "a schema of a long text": {"json_schema": {"type": "string", "maxLength": 10**9}},
    "a pattern of a long text": {"json_schema": {"type": "string", "pattern": "^((a{1000}){1000}){1000}$"}},
    "a long chain of rules": {
        "grammar": "%llguidance {}\nstart: r0\n" + "".join(f"r{k}: r{k + 1}\n" for k in range(9000)) + 'r9000: "a"'
    },
    "a long chain of references": {"json_schema": CHAIN},
    "a regular expression with many states": {"regex": "(.*a.{30}b)*"},
    "all that the grammar allows is banned": {"grammar": 'root ::= "x"', "banned_tokens": ["x"]},
    "a bias of an unknown id": {"logit_bias": [[49_152, 1]]},
    "a huge bias": {"logit_bias": {"5": 1e39}},
    "the largest repeat_last_n": {"repeat_last_n": 2**31 - 1, "repeat_penalty": 1.1},
    "the largest dry_penalty_last_n": {"dry_penalty_last_n": 2**31 - 1, "dry_multiplier": 1},
    "the largest top_k and min_keep": {"top_k": 2**31 - 1, "min_keep": 2**31 - 1},
    "the smallest temperature": {"temperature": 5e-324},
    "all off": {"samplers": []},
    "mirostat at its limits": {"mirostat": 1, "mirostat_tau": 0, "mirostat_eta": 1},
    "everything at once": {
        "mirostat": 0,
        "xtc_probability": 1,
        "xtc_threshold": 0,
        "typical_p": 0,
        "top_n_sigma": 0.0001,
        "dynatemp_range": 100,
        "dynatemp_exponent": 100,
        "adaptive_target": 1,
        "min_p": 1,
        "top_p": 0,
        "top_k": 1,
    },
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused(server: Server, what: str) -> None:
    status, answer = server.request("/v1/completions", {"prompt": "Once", "n": 2, "max_tokens": 3} | REFUSED[what])
    assert status == 400, answer
    assert len(server.texts(n=2, max_tokens=2)) == 2


@pytest.mark.parametrize("what", SURVIVED)
def test_survived(server: Server, what: str) -> None:
    events = server.events(**{"prompt": "Once", "n": 2, "max_tokens": 3} | SURVIVED[what])
    assert events[-1]["event"] == "done"
    assert len(server.texts(n=2, max_tokens=2)) == 2

"""What clients of llama-server send, each answered with what it needs. On the fake backend.

The bodies were written down from what is known of these clients.
"""

import json
from typing import Any

from fake_backend import FakeBackend, says
from server.conftest import Connect

from srb.engine.model import SpecialTokens
from srb.llama.model.chat_template import ChatTemplate

SILLY_TAVERN: dict[str, Any] = {
    "prompt": "Seraphina: Hello.\nYou:",
    "model": "fake.gguf",
    "max_new_tokens": 3,
    "max_tokens": 3,
    "temperature": 1,
    "top_p": 0.95,
    "typical_p": 1,
    "typical": 1,
    "sampler_seed": -1,
    "min_p": 0.05,
    "repetition_penalty": 1,
    "frequency_penalty": 0,
    "presence_penalty": 0,
    "top_k": 0,
    "skew": 0,
    "min_tokens": 0,
    "add_bos_token": True,
    "smoothing_factor": 0,
    "smoothing_curve": 1,
    "dry_allowed_length": 2,
    "dry_multiplier": 0,
    "dry_base": 1.75,
    "dry_sequence_breakers": '["\\n",":","\\"","*"]',
    "dry_penalty_last_n": 0,
    "max_tokens_second": 0,
    "stopping_strings": ["\nYou:"],
    "stop": ["\nYou:"],
    "truncation_length": 8192,
    "ban_eos_token": False,
    "skip_special_tokens": True,
    "top_a": 0,
    "tfs": 1,
    "mirostat_mode": 0,
    "mirostat_tau": 5,
    "mirostat_eta": 0.1,
    "custom_token_bans": "",
    "banned_strings": [],
    "api_type": "llamacpp",
    "api_server": "http://127.0.0.1:9090/",
    "n": 2,
    "rep_pen": 1,
    "rep_pen_range": 0,
    "repetition_penalty_range": 0,
    "seed": -1,
    "guidance_scale": 1,
    "negative_prompt": "",
    "grammar": "",
    "repeat_penalty": 1,
    "repeat_last_n": 0,
    "n_predict": 3,
    "num_predict": 3,
    "mirostat": 0,
    "ignore_eos": False,
    "tfs_z": 1,
    "nsigma": 0,
    "top_n_sigma": 0,
    "xtc_threshold": 0.1,
    "xtc_probability": 0,
    "dynatemp_range": 0,
    "dynatemp_exponent": 1,
    "min_keep": 0,
    "n_probs": 2,
    "logit_bias": [[104, False], [105, -5]],
    "samplers": ["penalties", "dry", "top_n_sigma", "top_k", "typ_p", "tfs_z", "xtc", "top_p", "min_p", "temperature"],
    "cache_prompt": True,
}

MIKUPAD: dict[str, Any] = {
    "prompt": "Once",
    "seed": 1,
    "n_predict": 3,
    "temperature": 0.7,
    "dynatemp_range": 0,
    "dynatemp_exponent": 1,
    "repeat_penalty": 1.1,
    "repeat_last_n": 256,
    "penalize_nl": False,
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "tfs_z": 1,
    "top_k": 40,
    "top_p": 0.95,
    "typical_p": 1,
    "min_p": 0,
    "mirostat": 0,
    "mirostat_tau": 5.0,
    "mirostat_eta": 0.1,
    "xtc_threshold": 0.1,
    "xtc_probability": 0,
    "dry_multiplier": 0,
    "dry_base": 1.75,
    "dry_allowed_length": 2,
    "dry_penalty_last_n": -1,
    "dry_sequence_breakers": ["\n", ":", '"', "*"],
    "stop": [],
    "n_probs": 10,
    "logit_bias": {},
    "grammar": "",
    "ignore_eos": False,
    "cache_prompt": True,
    "stream": True,
}

PROMPTFOO: dict[str, Any] = {
    "prompt": "Once",
    "n_predict": 3,
    "temperature": 0,
    "best_of": 1,
    "top_k": None,
    "stop": None,
}

LLAMA_VIM: dict[str, Any] = {
    "id_slot": 0,
    "input_prefix": "def f():\n",
    "input_suffix": "\n",
    "input_extra": [{"text": "import os\n", "time": [5, 7], "filename": "main.py"}],
    "prompt": "    return ",
    "n_predict": 3,
    "stop": [],
    "n_indent": 4,
    "top_k": 40,
    "top_p": 0.9,
    "samplers": ["top_k", "top_p", "infill"],
    "stream": False,
    "cache_prompt": True,
    "t_max_prompt_ms": 500,
    "t_max_predict_ms": 1000,
    "response_fields": [
        "content",
        "timings/prompt_n",
        "timings/prompt_ms",
        "timings/predicted_n",
        "timings/predicted_per_second",
        "truncated",
        "tokens_cached",
    ],
}


async def test_silly_tavern(connect: Connect) -> None:
    client = await connect(
        FakeBackend(
            script=says(b"ab", prompt=len(SILLY_TAVERN["prompt"])), chat_template=ChatTemplate("{{ messages }}")
        )
    )
    assert (await (await client.get("/v1/models")).json())["data"][0]["id"] == "fake"
    assert (await (await client.get("/props")).json())["chat_template"] == "{{ messages }}"
    assert (await (await client.post("/tokenize", json={"content": "ab"})).json())["tokens"] == [97, 98]
    response = await client.post("/completion", json=SILLY_TAVERN | {"stream": False})
    several = await response.json()
    assert [each["content"] for each in several] == ["ab", "ab"]
    assert {"tfs_z", "api_server", "samplers.tfs_z"} <= set(response.headers["x-srb-ignored"].split(", "))
    response = await client.post("/completion", json=SILLY_TAVERN | {"stream": True})
    chunks = [json.loads(line[6:]) for line in (await response.text()).split("\n\n")[:-1]]
    for index in (0, 1):
        own = [chunk for chunk in chunks if chunk["index"] == index]
        assert "".join(chunk["content"] for chunk in own) == "ab"
        assert len(own[0]["completion_probabilities"][0]["top_logprobs"]) == 2
        assert own[-1]["stop"] is True


async def test_mikupad(connect: Connect) -> None:
    client = await connect(FakeBackend(script=says("hé".encode(), prompt=4)))
    tokens = (await (await client.post("/tokenize", json={"content": "Once"})).json())["tokens"]
    assert (await (await client.post("/detokenize", json={"tokens": tokens})).json())["content"] == "Once"
    response = await client.post("/completion", json=MIKUPAD)
    chunks = [json.loads(line[6:]) for line in (await response.text()).split("\n\n")[:-1]]
    assert "".join(chunk["content"] for chunk in chunks) == "hé"
    for chunk in chunks[:-1]:
        (probability,) = chunk["completion_probabilities"]
        assert len(probability["top_logprobs"]) == 10
    assert chunks[-1]["stop"]


async def test_promptfoo(connect: Connect) -> None:
    client = await connect(FakeBackend(script=says(b"ab", prompt=4)))
    assert (await (await client.post("/completion", json=PROMPTFOO)).json())["content"] == "ab"


async def test_llama_vim(connect: Connect) -> None:
    backend = FakeBackend()
    backend.tokenizer.special = SpecialTokens(fim_pre=1, fim_suf=2, fim_mid=3)
    client = await connect(backend)
    response = await client.post("/infill", json=LLAMA_VIM)
    assert set(await response.json()) == set(LLAMA_VIM["response_fields"])
    ignored = ["n_indent", "id_slot", "t_max_prompt_ms", "samplers.infill", "input_extra.time"]
    assert sorted(response.headers["x-srb-ignored"].split(", ")) == sorted(ignored)

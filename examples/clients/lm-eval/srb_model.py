"""A model for lm-evaluation-harness that uses POST /v1/score: each question is evaluated once for all answers.

    python examples/clients/lm-eval/srb_model.py run --model srb --model_args url=http://localhost:9090 --tasks arc_easy

The program is `lm_eval` with one more model, and needs no tokenizer. If the server requires a key, set SRB_KEY.
"""

import json
import os
import sys
import urllib.error
import urllib.request
from typing import Any

from lm_eval.api.model import LM
from lm_eval.api.registry import register_model

CONTEXTS_AT_ONCE = 200
"""Contexts per request. A body may have 4 MiB."""


@register_model("srb")
class Srb(LM):
    def __init__(self, url: str = "http://localhost:9090", **_others: Any) -> None:
        super().__init__()
        self._url = url.rstrip("/")

    def loglikelihood(self, requests: list[Any]) -> list[tuple[float, bool]]:
        return self._scores([each.args for each in requests])

    def loglikelihood_rolling(self, requests: list[Any]) -> list[float]:
        return [logprob for logprob, _ in self._scores([("", each.args[0]) for each in requests])]

    def generate_until(self, requests: list[Any]) -> list[str]:
        texts = []
        for prompt, settings in (each.args for each in requests):
            body = {"prompt": prompt, "stop": settings.get("until"), "max_tokens": settings.get("max_gen_toks", 256)}
            body |= {"temperature": settings.get("temperature", 0), "n": 1, "stream": False}
            texts.append(json.load(self._ask("/v1/completions", body))["choices"][0]["text"])
        return texts

    def _scores(self, pairs: list[tuple[str, str]]) -> list[tuple[float, bool]]:
        """Return the log-probability of each continuation given its context, and whether greedy decoding gives it."""
        asked: dict[str, dict[str, None]] = {}
        for context, continuation in pairs:
            asked.setdefault(context, {})[continuation] = None
        contexts, found = list(asked), dict[tuple[str, str], tuple[float, bool]]()
        props = json.load(self._ask("/props"))
        first = props["bos_token"] or props["eos_token"]  # replaces an empty context, as in lm-eval
        for start in range(0, len(contexts), CONTEXTS_AT_ONCE):
            some = contexts[start : start + CONTEXTS_AT_ONCE]
            ends = [list(asked[context]) for context in some]
            for line in self._ask("/v1/score", {"contexts": [each or first for each in some], "continuations": ends}):
                event = json.loads(line.removeprefix(b"data: ")) if line.startswith(b"data: ") else {"event": ""}
                if event["event"] == "error":
                    raise RuntimeError(event["error"]["message"])
                if event["event"] == "score":
                    k = event["context"]
                    found[some[k], ends[k][event["continuation"]]] = event["logprob"], event["greedy"]
        return [found[pair] for pair in pairs]

    def _ask(self, path: str, body: Any = None) -> Any:
        headers = {"Authorization": f"Bearer {os.environ.get('SRB_KEY', '')}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        try:
            return urllib.request.urlopen(urllib.request.Request(self._url + path, data, headers))
        except urllib.error.HTTPError:
            raise
        except OSError as error:
            sys.exit(f"Cannot connect to {self._url} ({error}). Start the server first: ./build.sh serve")


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()

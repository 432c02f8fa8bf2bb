"""Draws texts that match a JSON schema from random logits, and makes judges that say whether texts match."""

import decimal
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import numpy as np

from srb import LlamaBackend, SamplingParams, Settings

MAX_TOKENS = 300
Judge = Callable[[str], bool]


class Writer:
    """Draws random texts that match a schema. Quotes and brackets are likelier than letters, so that texts end."""

    def __init__(self, model: Path) -> None:
        self.backend = LlamaBackend(Settings(model=model))
        self._tokenizer = self.backend.tokenizer
        self._n_vocab = self._tokenizer.n_vocab
        self._rng = np.random.default_rng(0)
        pieces = [self._tokenizer.piece(token) for token in range(self._n_vocab)]
        self._likely = np.array([3.0 if piece and piece in b'"}],' else 0.0 for piece in pieces], np.float32)
        self._likely[[k for k, piece in enumerate(pieces) if piece and piece in b"0123456789"]] = 1
        self._likely[sorted(self._tokenizer.ends)] = 4
        self._likely[[k for k, piece in enumerate(pieces) if max(piece, default=0) > 126]] = -1

    def texts(self, schema: Any, n: int) -> Iterator[str | None]:
        """n texts; None for each that didn't end within `MAX_TOKENS`. Raises `InvalidRequestError`."""
        params = SamplingParams(json_schema=json.dumps(schema), samplers=(), seed=0).alternatives(n)
        compiled = self.backend.compile(params)
        for each in params:
            yield self._text(each, compiled)
        compiled.close()

    def _text(self, params: SamplingParams, compiled: Any) -> str | None:
        sampler = self.backend.sampler(params, compiled, (1,), ())
        logits = (self._likely + self._rng.normal(0, 1.5, self._n_vocab)).astype(np.float32)
        tokens: list[int] = []
        try:
            while len(tokens) < MAX_TOKENS:
                token = sampler.sample(logits)
                if self._tokenizer.is_end(token):
                    return b"".join(map(self._tokenizer.piece, tokens)).decode()
                tokens.append(token)
        finally:
            sampler.close()
        return None

    def can_write(self, schema: Any, text: str) -> bool:
        """Whether the backend can draw this text under the schema."""
        params = SamplingParams(json_schema=json.dumps(schema), seed=0)
        compiled = self.backend.compile((params,))
        constraint = compiled.constraint(params)
        compiled.close()
        assert constraint
        tokens = self._tokenizer.tokenize(text, is_prompt=False, parse_special=False)
        for token in (*tokens, min(self._tokenizer.ends)):
            if not constraint.allows(token):
                return False
            constraint.accept(token)
        return True


def exact(text: str) -> Any:
    """Reads JSON. Numbers become exact decimals, or floats if the exponent is too large for a decimal."""

    def number(digits: str) -> Any:
        try:
            return decimal.Decimal(digits)
        except decimal.InvalidOperation:
            return float(digits)

    return json.loads(text, parse_float=number)


def judge_of(schema: Any, validator: Any, tests: list[dict[str, Any]]) -> Judge:
    """A judge for a schema: jsonschema's validator if it is right in all tests, else that of jsonschema_rs."""
    strict = validator(exact(json.dumps(schema)), format_checker=validator.FORMAT_CHECKER)

    def matches(text: str) -> bool:
        with decimal.localcontext(prec=1000):
            return bool(strict.is_valid(exact(text)))

    try:
        if all(matches(json.dumps(test["data"])) == test["valid"] for test in tests):
            return matches
    except Exception:  # the validator may raise anything, such as re.error
        pass
    other = jsonschema_rs.validator_for(schema, validate_formats=True)
    return lambda text: bool(other.is_valid(json.loads(text)))

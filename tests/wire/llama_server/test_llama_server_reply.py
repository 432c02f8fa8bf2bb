"""llama-server's results from events, by a clock that stands still."""

from typing import Any

import pytest
from fake_backend import ByteTokenizer

from srb.engine.events import ErrorEvent, ProgressEvent, StartEvent, StopEvent, StreamEvent, Timings
from srb.engine.limits import RequestLimits
from srb.engine.request import CompletionRequest
from srb.engine.sampling_params import SamplingParams
from srb.errors import BackendError
from srb.wire.answer import Response
from srb.wire.limits import Limits
from srb.wire.llama_server.body import LlamaFields, parse_completion
from srb.wire.llama_server.reply import Results, TimeLimit
from srb.wire.request.read import validate
from srb.wire.slots import generation_settings, public_settings

TOKENIZER = ByteTokenizer()
LIMITS = Limits("fake", n=4, max_n=8, tokenize=RequestLimits(TOKENIZER, 4096).tokenize)


def completion(**body: Any) -> tuple[Response, list[float]]:
    parsed = parse_completion(validate({"prompt": "p", "seed": 0} | body, LlamaFields), LIMITS)
    now = [100.0]
    form = Results(parsed.completion, "fake", stream=False, has_times=False, only=(), prompts=["p"])
    return Response(form, clock=lambda: now[0]), now


def test_progress() -> None:
    reply, now = completion(stream=True, return_progress=True)
    assert list(reply.chunks([StartEvent("r", 1, 9, 2, 5, (0,), (None,))])) == []
    now[0] += 0.25
    (chunk,) = reply.chunks([ProgressEvent("r", evaluated=4, cached=2, total=9)])
    progress = {"total": 9, "cache": 2, "processed": 6, "time_ms": 250}
    assert chunk == {"index": 0, "content": "", "tokens": [], "stop": False, "prompt_progress": progress}


def test_an_alternative_is_over_its_time_limit_once_it_has_a_line_break() -> None:
    now = [100.0]
    limit = TimeLimit(500, lambda: now[0])
    assert limit.exceeded([StreamEvent("r", 0, "a"), StreamEvent("r", 1, "a\n")]) == []
    now[0] += 0.6
    assert limit.exceeded([]) == [1]
    assert limit.exceeded([StreamEvent("r", 0, "\n")]) == [0, 1]
    stop = StopEvent("r", 1, 3, "abort", "timeout", timings=Timings(0, 1, 0, 3, 0))
    assert limit.exceeded([stop]) == [0]
    reply, _ = completion(n=2)
    first, second = reply.object([stop, StopEvent("r", 0, 3, "stop", None)])
    assert (second["stop_type"], second["timings"]["predicted_per_second"]) == ("limit", 0)
    assert first["timings"] == {}


def test_a_fault_in_one_alternative_is_shown_in_its_result_and_in_all_is_raised() -> None:
    reply, _ = completion(n=2)
    broken = ErrorEvent("r", 1, BackendError("broken"))
    ends = [StopEvent("r", 0, 1, "stop", None), StopEvent("r", 1, 0, "error", None)]
    first, second = reply.object([StreamEvent("r", 0, "a"), broken, *ends])
    assert (first["content"], second["error"]["message"]) == ("a", "broken")
    reply, _ = completion(n=1)
    with pytest.raises(BackendError, match="broken"):
        reply.object([ErrorEvent("r", 0, BackendError("broken")), StopEvent("r", 0, 0, "error", None)])


def test_public_settings_quote_nobody() -> None:
    secret = SamplingParams(json_schema='{"const": "secret"}', stop=("secret",), label="secret", seed=1)
    request = CompletionRequest(((1,),), (secret,))
    assert "secret" in str(generation_settings(secret, request))
    assert "secret" not in str(public_settings(secret, request))

"""Events as the history keeps them."""

import pytest

from srb.engine.events import ErrorEvent, PromptLogprobsEvent, Token
from srb.engine.request import CompletionRequest
from srb.engine.sampling_params import SamplingParams
from srb.errors import BackendError, ContextSizeError, InvalidRequestError, LogitsProcessorError, SrbError
from srb.history.recorder import pack, pack_request, unpack, unpack_request


@pytest.mark.parametrize(
    "error",
    [
        BackendError("broken", seq_ids=(1, 2)),
        ContextSizeError(5000, 4096),
        InvalidRequestError("n is too large", param="n", code="too_large"),
        LogitsProcessorError("it raised"),
    ],
)
def test_an_error_comes_back_as_it_was(error: SrbError) -> None:
    (event,) = unpack("r", pack([ErrorEvent("r", 3, error)]))
    assert isinstance(event, ErrorEvent)
    assert (event.request_id, event.index, type(event.error)) == ("r", 3, type(error))
    assert (vars(event.error), str(event.error)) == (vars(error), str(error))


def test_an_error_of_another_srb_is_an_error() -> None:
    (event,) = unpack("r", '[{"error": "GoneSinceError", "index": null, "message": "no", "param": null}]')
    assert isinstance(event, ErrorEvent)
    assert type(event.error) is SrbError
    assert event.error.body()["message"] == "no"


def test_a_request_that_resumes_shares_with_the_same_requests() -> None:
    request = CompletionRequest(((1, 2),), (SamplingParams(seed=1),), shared_within="ann")
    assert unpack_request(pack_request(request)) == request


def test_the_log_probabilities_of_a_prompt_come_back_as_they_were() -> None:
    tokens = (Token(5, b"\xc3", None), Token(6, b"a", -0.5, (Token(7, b"b", -0.25),), 2))
    event = PromptLogprobsEvent("r", (0, 1), tokens)
    assert unpack("r", pack([event])) == [event]

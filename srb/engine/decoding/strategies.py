"""Decoding strategies: the ways to continue a prompt. Each is a `DecodingStrategy` (`base.py`).

| module | strategy |
|---|---|
| `sampling.py` | each sequence samples its tokens; the one of a plain request. `Scoring` does it with given tokens |
| `speculative.py` | the same with draft tokens, several tokens in a step (speculative decoding) |
| `context_shift.py` | the same for texts that are longer than the context |
| `search_base.py` | the base of strategies with rows of their own, whose sequences get the best texts |
| `beam_search.py` | beam search |
| `bridge.py` | samples candidates, and returns those that a suffix follows best |
| `explore.py` | finds the tree of the most probable continuations |

To add one: subclass `DecodingStrategy`, and choose the class in `strategy_of`. The engine's core needs no change.
"""

from srb.engine.backend import Backend
from srb.engine.decoding.base import AnyStrategy
from srb.engine.decoding.beam_search import BeamSearch
from srb.engine.decoding.bridge import Bridge
from srb.engine.decoding.context_shift import ContextShift, may_shift
from srb.engine.decoding.explore import Exploration
from srb.engine.decoding.sampling import Sampling, Scoring
from srb.engine.decoding.speculative import SpeculativeSampling
from srb.engine.request import CompletionRequest
from srb.engine.spec_decode.proposers import may_speculate


def strategy_of(request: CompletionRequest, backend: Backend, default_max_tokens: int) -> type[AnyStrategy]:
    """Return the strategy that a request asks for."""
    if request.explore:
        return Exploration
    if request.suffix is not None:
        return Bridge
    if request.n_rows:
        return BeamSearch
    if request.candidates:
        return Scoring
    if may_shift(request, backend.n_cells, default_max_tokens):
        return ContextShift
    return SpeculativeSampling if may_speculate(request, backend) else Sampling

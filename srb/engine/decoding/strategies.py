"""The ways in which a prompt can be continued. Each is a `DecodingStrategy` of `srb.engine.ports`; `way_of` chooses.

| file | what it does |
|---|---|
| `sampling.py` | each sequence draws its tokens; the way of a plain request, so read this first |
| `guessing.py` | the same, several tokens in a step where they were guessed |
| `shifting.py` | the same for texts that are longer than the context |
| `given.py` | alternatives whose tokens are given, and only scored: drawn by a sampler that knows them |
| `following.py` | companions: sequences that go on with the tokens of another one |
| `choosing.py`, `rows.py` | ways with rows of their own, whose sequences get the best texts; these rows |
| `beams.py`, `search.py` | searches: rows that are beams; which of them go on |
| `bridge.py`, `middle.py`, `suffix.py` | bridges: all candidates; one of them; how well the suffix follows it |
| `exploring.py`, `tree.py` | the tree of likely continuations: the sequences that evaluate it; which text is next |

What comes in: a prompt that is evaluated, and then the logits of each row. What goes out: tokens to the outbox, forks
to the cells, and at the end `finish`.
"""

from srb.engine.backend import Backend
from srb.engine.decoding.beam_search import BeamSearch
from srb.engine.decoding.bridge import Bridge
from srb.engine.decoding.context_shift import ContextShift, may_shift
from srb.engine.decoding.explore import Exploration
from srb.engine.decoding.sampling import Sampling
from srb.engine.decoding.scoring import Scoring
from srb.engine.decoding.speculative import SpeculativeSampling
from srb.engine.request import CompletionRequest
from srb.engine.spec_decode.proposers import may_speculate

StrategyType = type[Sampling] | type[BeamSearch] | type[Exploration] | type[Bridge]


def strategy_of(request: CompletionRequest, backend: Backend, default_max_tokens: int) -> StrategyType:
    """The kind of way that a request asks for."""
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

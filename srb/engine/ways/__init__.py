"""The ways in which a prompt can be continued. Each is a `Way` of `srb.engine.ports`; `way_of` chooses.

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

from srb.engine.asking.request import CompletionRequest
from srb.engine.backend import Backend
from srb.engine.guesses import may_guess
from srb.engine.ways.beams import Beams
from srb.engine.ways.bridge import Bridge
from srb.engine.ways.exploring import Exploring
from srb.engine.ways.following import Following
from srb.engine.ways.given import Scored
from srb.engine.ways.guessing import Guessing
from srb.engine.ways.sampling import Sampling
from srb.engine.ways.shifting import Shifting, may_shift
from srb.engine.ways.tools import Tools

Kind = type[Sampling] | type[Beams] | type[Exploring] | type[Bridge]


def kind_of(request: CompletionRequest, backend: Backend, default_max_tokens: int) -> Kind:
    """The kind of way that a request asks for."""
    if request.explore:
        return Exploring
    if request.suffix is not None:
        return Bridge
    if request.n_rows:
        return Beams
    if request.candidates:
        return Scored
    if may_shift(request, backend.n_cells, default_max_tokens):
        return Shifting
    return Guessing if may_guess(request, backend) else Sampling


__all__ = ["Beams", "Bridge", "Exploring", "Following", "Kind", "Sampling", "Shifting", "Tools", "kind_of"]

"""`Kept`: all that an engine keeps for later requests, put together."""

from collections.abc import Callable
from typing import Any

from srb.engine.backend import Backend
from srb.engine.kept.checkpoints import Checkpoints
from srb.engine.kept.keeping import Keeping
from srb.engine.kept.prefix import PrefixIndex
from srb.engine.kept.questions import Questions
from srb.engine.kept.retained import Retained
from srb.engine.kept.slots import Slots
from srb.engine.kept.store import Store, StoreStats
from srb.engine.kv.memory import Memory
from srb.engine.ports import Listener
from srb.engine.scheduler import Scheduler
from srb.engine.sequence import ActiveRequest
from srb.engine.telling.stats import Totals


class Kept:
    """What is known of earlier texts: how prompts begin with it (`index`), and questions about slots.

    cache_bytes: how many bytes of states are kept in memory; 0: none. store: keeps them for longer than the process
    lives; None: nothing does.
    """

    def __init__(
        self,
        backend: Backend,
        memory: Memory,
        cache_bytes: int,
        store: Store | None,
        totals: Totals,
        clock: Callable[[], float],
    ) -> None:
        self.retained = Retained(backend, cache_bytes, store)
        self._store = store
        self._window = backend.window
        self._clock = clock
        slots = Slots(self.retained, backend.n_parallel)
        self.index = PrefixIndex(backend, self.retained, memory)
        self.questions = Questions(slots)
        self._keeping = Keeping(backend, self.retained, slots, totals, clock)

    def listeners(self, scheduler: Scheduler) -> list[Listener]:
        """Those that keep what they are told of. The running requests of the scheduler are saved in the store."""
        saving = [Checkpoints(scheduler, self._keeping, self._window, self._clock)] if self._store else []
        return [self.index, self._keeping, *saving]

    def check(self, active: ActiveRequest) -> None:
        """Compares what the store has of a request's prompts with its hashes; see `Store.check`. In any thread."""
        for prompt in active.prompts + active.companions if active.request.cache_prompt else ():
            self.retained.check(prompt.packed, prompt.keys)

    def sizes(self) -> dict[str, Any]:
        """What is kept, as `EngineStats` has it."""
        stored = self._store.stats() if self._store else StoreStats()
        return {
            "store": stored,
            "retained_bytes": self.retained.size,
            "max_retained_bytes": self.retained.max_bytes,
        }

    def close(self) -> None:
        """Returns when the store has written all that it was given."""
        if self._store:
            self._store.close()

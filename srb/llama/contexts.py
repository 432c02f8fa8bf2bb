"""The context of a backend, which is replaced when another layout of the KV cache suits the work."""

import dataclasses
from collections.abc import Sequence

from srb.engine.backend import Costs
from srb.engine.kv_cache.allocator import Layout, Load
from srb.errors import ModelLoadError
from srb.llama.layouts import Layouts, first_layout
from srb.llama.model.fit import PROMPT_OUTPUTS, max_cells, n_seqs, wanted_cells
from srb.llama.model.loader import LoadedModel
from srb.llama.model.weights import available_memory
from srb.llama.multimodal.projector import LlamaMedia
from srb.llama.native import library as log
from srb.llama.native.context import Context, shiftable
from srb.llama.native.cost_model import DEFAULT_COST_MODEL, can_choose_attention, estimated
from srb.llama.native.params import is_on_gpu, round_up
from srb.llama.native.streams import ReproducibleStreams, Streams
from srb.llama.tune.result import Choice
from srb.options.settings import Settings


class Contexts:
    """Makes the contexts of a model, one at a time. Raises `ModelLoadError`.

    Args:
        choice: the settings, and the costs that were measured with them.
        window: `Backend.window`.
        media: evaluates images and sounds; None without a projector.

    Attributes:
        current: the present context.
        layout: the layout of the present context; while that is closed, of the next one.
        n_cells: the longest context of one request.
    """

    def __init__(
        self, model: LoadedModel, choice: Choice, n_threads: int, window: int | None, media: LlamaMedia | None
    ) -> None:
        settings, pointer = choice.settings, model.pointer
        self._model, self._settings, self._media = model, settings, media
        on_gpu = is_on_gpu(settings)
        self._cost_model = choice.cost_model or (choice.machine_costs or DEFAULT_COST_MODEL).scaled_to(
            estimated(pointer, n_threads, is_on_gpu=on_gpu)
        )
        can_convert = not (media and media.has_positions)  # state.py can't read the states of such cells
        self._chooses = settings.flash_attn == "auto" and can_choose_attention(window, settings) and can_convert
        has_streams = settings.kv_layout == "streams"
        flash_attn = self._cost_model.preferred if self._chooses and not has_streams else settings.flash_attn
        n_wanted, free = wanted_cells(pointer, settings), available_memory()
        self.layout = first_layout(settings, n_wanted, n_seqs(settings), flash_attn)
        self.current = self._make()
        self.n_cells = self.layout.n_cells if settings.reproducible else round_up(n_wanted)
        can_move = can_convert and window is None
        self._layouts = Layouts(
            n_cells=self.n_cells,
            n_seqs=n_seqs(settings),
            n_parallel=settings.parallel,
            cell_bytes=self.current.cell_bytes,
            max_cells=max_cells(pointer, settings, self.n_cells, self.current.cell_bytes, free),
            costs=self._cost_model,
            flash_attn=("auto", "off") if self._chooses else (settings.flash_attn,),
            fixed=self.layout if settings.reproducible else None,
            unified=settings.kv_layout != "streams",
            streams=settings.kv_layout == "streams" or (settings.kv_layout == "auto" and can_move and not on_gpu),
            can_move=can_move,
        )
        if not settings.reproducible:
            log.logger.info(
                "KV cache: up to %d cells per request, and %d cells for all requests, which take %d MiB",
                self.n_cells,
                self._layouts.max_cells,
                self._layouts.max_cells * self.current.cell_bytes >> 20,
            )

    @property
    def can_shift(self) -> bool:
        """Whether positions can be moved in contexts of all kinds."""
        kinds = map(self._settings_of, ("on", "off")) if self._chooses else ()
        return self.current.can_shift and all(shiftable(kind) == kind for kind in kinds)

    @property
    def cache_types(self) -> str:
        """The types of keys and values, of all kinds of contexts."""
        kinds = map(self._settings_of, ("off", "on"))
        types = (f"keys {each.cache_type_k or 'f16'}, values {each.cache_type_v or 'f16'}" for each in kinds)
        return " or ".join(dict.fromkeys(types))

    @property
    def costs(self) -> Costs:
        """The costs of decodes in the present context, measured or estimated."""
        costs = self._cost_model.of(self.layout.flash_attn)
        return costs if self.layout.is_unified else costs.in_streams()

    def choose(self, loads: Sequence[Load], n_used: int) -> Layout:
        """Return the layout for these loads."""
        return self._layouts.choose(loads, self.layout, n_used, is_open=not self.current.is_closed)

    def prepare(self, layout: Layout) -> None:
        """Make a context with this layout, or else the present one again. Raises `ModelLoadError`."""
        if not self.current.is_closed and layout == self.layout:
            return
        self.current.close()  # before the other one is made, because two would take twice the memory
        failure: ModelLoadError | None = None
        for each in dict.fromkeys((layout, self.layout)):
            self.layout = each
            try:
                self.current = self._make()
            except ModelLoadError as error:
                log.logger.warning("%s; the KV cache can't be %s now", error.message, each)
                self._layouts.refuse(each)
                failure = failure or error
            else:
                log.logger.debug("KV cache: %s", each)
                return
        assert failure
        raise failure

    def close(self) -> None:
        """Free the present context. `prepare` makes it again."""
        self.current.close()

    def _make(self) -> Context:
        reproducible = self._settings.reproducible
        kind = Context if self.layout.is_unified else ReproducibleStreams if reproducible else Streams
        return kind(
            self._model.pointer,
            self._settings_of(self.layout.flash_attn),
            self.layout,
            n_outputs=self._settings.parallel + PROMPT_OUTPUTS,
            adapters=self._model.adapter_pointers,
            control_vectors=self._model.control_vectors,
            media=self._media,
        )

    def _settings_of(self, flash_attn: str) -> Settings:
        """Return the settings of a context with this kind of attention."""
        cache_type = self._cost_model.of(flash_attn).cache_type
        if not (self._chooses and cache_type):
            return self._settings
        return dataclasses.replace(self._settings, cache_type_k=cache_type, cache_type_v=cache_type)

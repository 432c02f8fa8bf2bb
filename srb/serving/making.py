"""Makes an engine from the settings of a server or a program."""

from collections.abc import Callable

from srb.engine.asking.sampling_params import DEFAULT_MAX_TOKENS
from srb.engine.backend import Backend
from srb.engine.engine import Engine
from srb.engine.telling.stats import Measure
from srb.errors import ModelLoadError
from srb.files.disk_cache import DiskCache
from srb.options.settings import Settings


def make_engine(
    settings: Settings, backend: Backend, observe: Callable[[Measure, float], object] = lambda _measure, _seconds: None
) -> Engine:
    """An engine with these settings. observe: see `AsyncEngine.from_settings`. Raises `ModelLoadError`."""
    if settings.context_shift and not backend.can_shift:
        raise ModelLoadError(
            "--context-shift can't be had: the positions of this model's cells can't change, or not with "
            f"--cache-type-k {settings.cache_type_k or 'f16'}; leave it out"
        )
    store = None
    if settings.cache_disk:
        store = DiskCache(settings.cache_disk, backend.identity, settings.cache_disk_size << 20)
    return Engine(
        backend,
        default_max_tokens=DEFAULT_MAX_TOKENS if settings.max_tokens is None else settings.max_tokens,
        cache_bytes=settings.cache_ram << 20,
        store=store,
        observe=observe,
    )

"""srb: n alternatives of one prompt, streamed.

A prompt is evaluated once, its KV sequence is forked n ways, and one batched decode loop streams n alternatives, each
with its own `SamplingParams`.

    from srb import AsyncEngine, CompletionRequest, SamplingParams, Settings

    async with AsyncEngine.from_settings(Settings()) as engine:
        request = CompletionRequest(("Once upon a time,",), SamplingParams(temperature=1.0).alternatives(4))
        async for event in engine.generate(request):
            print(event)

Without asyncio: `LLM.from_settings(Settings())`, or an `Engine`, which has `add_request` and `step`. Shorter still:

    >>> texts = srb.generate("Once upon a time,", n=2, max_tokens=8)
    >>> scores = srb.score("The capital of France is", [" Paris", " Rome"])
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from srb.public import *  # noqa: F403
    from srb.public import __all__ as __all__
else:
    # `srb.public` is imported when one of its names is used. The command line uses none: it imports what it needs, when
    # it needs it.

    def __getattr__(name: str) -> Any:
        public = import_module("srb.public")
        globals().update({each: getattr(public, each) for each in ("__all__", *public.__all__)})
        if name in globals():
            return globals()[name]
        raise AttributeError(f"module 'srb' has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *import_module("srb.public").__all__})

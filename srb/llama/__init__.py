"""llama.cpp as a backend: the only home of llama_cpp and ctypes.

Every return code and NULL from C is checked where it is made and becomes a named error. What could end the
process, by an assert or a C++ exception, is refused before the call.
"""

import os

_FEW_CPUS = 4

# llama.cpp's threads wait for each other some hundred times in a step. libgomp has them spin, and where another program
# has taken a core, they spin until the one without a core has its turn again: steps of 50 ms then take seconds. It
# reads this when it is loaded. Sleeping costs a few percent on two cores (docs/benchmarks.md); nobody measured more.
if (os.cpu_count() or 1) <= _FEW_CPUS and "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "0")

from srb.llama.backend import LlamaBackend  # noqa: E402

__all__ = ["LlamaBackend"]

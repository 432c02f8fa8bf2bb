"""llama.cpp as a backend: the only home of llama_cpp and ctypes.

Every return code and NULL from C is checked where it is made and becomes a named error. What could end the
process, by an assert or a C++ exception, is refused before the call.
"""

from srb.llama.backend import LlamaBackend

__all__ = ["LlamaBackend"]

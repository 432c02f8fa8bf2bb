"""llama.cpp as a backend. Only the modules of this package use llama_cpp and ctypes.

Every return code and NULL from C is checked right after the call and becomes a named error. Arguments that would end
the process, by an assert or a C++ exception, are refused before the call.
"""

from srb.llama.backend import LlamaBackend

__all__ = ["LlamaBackend"]

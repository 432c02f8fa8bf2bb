"""llama.cpp as a backend. Only the modules of this package use llama_cpp and ctypes.

Every return code and NULL from C is checked right after the call and becomes a named error. Arguments that would end
the process, by an assert or a C++ exception, are refused before the call.

The engine sees only `backend.py`; read it first. `contexts.py` and `layouts.py` choose how the KV cache is laid out,
`native/` has the contexts, `model/` model files, tokenizer and chat template, `sampling/` the samplers, `grammar/`
grammars and JSON schemas, `multimodal/` images and sounds, and `tune/` is `srb tune`.
"""

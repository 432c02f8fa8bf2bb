"""llama.cpp as a backend. Only the modules of this package use llama_cpp and ctypes.

Every return code and NULL from C is checked right after the call and becomes a named error. Arguments that would end
the process, by an assert or a C++ exception, are refused before the call.

`backend.py` is all that the engine sees; begin with it. `native/` has the contexts, `files/` the model files, `text/`
the tokenizer, `sampling/` the samplers, `media/` images and sounds, and `tune/` what `srb tune` does.
"""

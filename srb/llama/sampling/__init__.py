"""How a token is drawn from logits: llama.cpp's samplers, and constraints on the text.

`sampler.py` draws; begin with it. `compiled.py` has what is made once for a request. `constraint.py` is what a text
must match, with `gbnf.py` and `json_schema.py` as translators for llguidance. `smoothing.py` is a
sampler of our own, a function from logits to logits: to add another one, write such a file, name it in `SAMPLERS`, and
add a case to `LlamaSampler._narrowing`.
"""

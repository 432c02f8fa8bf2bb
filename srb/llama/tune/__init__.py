"""`srb tune`: which weights, attention and threads are fastest here.

`search.py` tries and decides, `probe.py` measures, `findings.py` judges, and `tuned.py` keeps the choice.

What is fastest is measured where it runs, not guessed. What cells hold makes no difference to the time, so the depth of
a long prompt is made by moving a saved state. `srb.llama.files.weights` converts, and `LlamaBackend` asks for the
result with `choose`.
"""

"""What a prompt is beside tokens: its setting of adapters, images in it, and the log-probabilities of its own tokens.

`adapters.py` and `media.py` say what stands in a prompt for these. `scores.py` has log-probabilities, and `scoring.py`
takes them from each decode. `stretches.py` says which tokens are evaluated in one manner.
"""

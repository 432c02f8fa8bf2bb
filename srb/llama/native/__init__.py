"""llama.cpp's contexts, and what surrounds their calls: parameters, batches, states, positions, threads and the log.

`context.py` makes the calls that evaluate tokens; begin with it.
"""

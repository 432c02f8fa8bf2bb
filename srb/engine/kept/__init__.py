"""What is kept of evaluated texts, for requests that come later, and what a prompt can begin with.

`kept.py` puts all of it together for an engine; begin with it. `keeping.py` decides what there is time for.
`retained.py` has the states, in the pieces of `pieces.py`; a `store.py` keeps them for longer than the process lives
(`stored.py`), and `checkpoints.py` saves what still runs. `prefix.py` finds what a prompt can begin with, of which
`restored.py` is a part. `slots.py`, `questions.py`, `slot_file.py` and `state_file.py` are slots and
files.

In: what the listeners of `srb.engine.ports` are told. Out: the parts of a prompt's beginning.
"""

"""What is kept of evaluated texts, for requests that come later, and what a prompt can begin with.

`keeping.py` decides what there is time for; begin with it. `retained.py` has the states, in the pieces of `pieces.py`;
a `store.py` keeps them for longer than the process lives, and `checkpoints.py` saves what still runs. `prefix.py` finds
what a prompt can begin with, of which `restored.py` and `moved.py` are parts. `slots.py`, `slot_file.py` and
`state_file.py` are slots and files.

In: what the listeners of `srb.engine.ports` are told. Out: the parts of a prompt's beginning.
"""

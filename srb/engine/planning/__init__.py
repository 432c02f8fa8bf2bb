"""Who has how much of the next step: which rows, which prompts, and how many tokens of each.

`srb/engine/plan.py` puts it together; begin there. `turns.py` chooses rows when there are more than fit. `order.py`
says which prompts go next, and how much time they have beside rows. `pieces.py` says how many of their tokens are next.

In: the prompts that hold cells, and the backend's costs. Out: units of rows, and pieces of prompts.
"""

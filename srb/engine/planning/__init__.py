"""Who has how much of the next step: which rows, which prompts, and how many tokens of each.

`srb/engine/plan.py` puts it together; begin there. `turns.py` chooses rows when there are more than fit. `order.py`
says which prompts go next, and how much time they have beside rows. `pieces.py` says how many of their tokens are next.

In: the prompts that hold cells, and the backend's costs. Out: units of rows, and pieces of prompts.

How many tokens fit into a pause is computed from `Backend.costs`, which were measured once, and not from the times of
the moment. So the same requests make the same batches. People read 5 to 10 tokens a second, and notice a first token
that doesn't come. Large pieces have a decode of their own, because flash attention takes 64 rows of one prompt
together through its cells; small ones join the rows. Example of who goes first: a story of 6,000 tokens is being
evaluated, and a question of 50 comes. The question is in the next piece. After some thousand tokens of such questions,
the story has its turn. A prompt that others wait for stops where they fork, and the rests share a batch.

Of a scored prompt, pieces of up to 128 tokens come first, because only so many rows of logits are held. Several such
prompts share a batch, unless `cache_prompt` is false: then the pieces don't depend on who else is there.
"""

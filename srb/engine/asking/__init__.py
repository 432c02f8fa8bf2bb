"""What may be asked of an engine, and how a request comes in.

`request.py` and `sampling_params.py` are what a caller writes; begin with these. `meanings.py`, `kinds.py` and
`combinations.py` check them. `facade.py` answers other threads, `intake.py` and `supported.py` refuse what can never
run, `activation.py` makes the prompts and sequences of a request, and `resume.py` lets one go on after an interruption.
`model.py` is what is known about a model, for any thread.

In: a `CompletionRequest`. Out: an `ActiveRequest`, or `InvalidRequestError`.
"""

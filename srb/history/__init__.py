"""What lasts: requests, their texts, and stories, in one SQLite file (`--history`).

`writer.py` has the one thread that writes; begin with `history.py`, which has the writer and the readers. `recorder.py`
turns events into changes of the file. The other modules are functions of a connection.

In: a step's events, from the engine's thread. The writer puts everything that waits into one transaction, and then the
events go on to the event loop. So what a reader sees is in the file, and nothing else needs to know of it. Out: after a
crash the journals, made again from the file; `srb.engine.resume` says what the engine has to go on with.
"""

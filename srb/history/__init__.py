"""Requests, their texts, and stories, in one SQLite file (`--history`).

`history.py` has `History`: the writer and the readers; begin there. `writer.py` is the one thread that writes.
`recorder.py` turns events into changes of the file. The other modules are functions of a connection.

In: a step's events, from the engine's thread. The writer puts everything that waits into one transaction, and then the
events go to the event loop. So what a reader sees is in the file. Out: after a restart, the event logs of the
interrupted requests; `srb.engine.resume` makes the requests that the engine has to continue.
"""

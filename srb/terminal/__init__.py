"""The commands that people run in a terminal: `srb generate`, `srb explore`, `srb compare` and `srb history`.

The first three send request bodies and read native events, whether a server answers or an engine in this process does.

They make the bodies that clients would send, and read the answers as clients do, also where no server is. So names,
aliases, ranges and what has no effect are those of the server, and written once. `source.py` is what answers; begin
with it. `options.py` makes options of a request's fields, and `show.py` shows events.
"""

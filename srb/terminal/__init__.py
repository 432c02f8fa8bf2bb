"""The commands that people run in a terminal: they send request bodies to a server, or to an engine in this process.

`source.py` answers the requests; begin with it. `options.py` makes options of a request's fields, and `show.py` shows
events.
"""

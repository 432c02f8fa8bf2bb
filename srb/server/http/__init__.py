"""What all routes share: they read a body, submit a request, and send its events.

`exchange.py` leads a request through; begin with it. `bodies.py` reads bodies and sends answers, `sse.py` streams,
and `refusals.py` errors. `runner.py` accepts connections; `connections.py` says how many there may be, and how long.
`lookups.py`, `media.py` and `remote_media.py` find what a body only names. `peers.py` asks the other servers in front
of the same engines.
"""

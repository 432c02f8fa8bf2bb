"""What all routes share: they read a body, submit a request, and send its events.

`exchange.py` leads a request through; begin with it. `bodies.py` reads bodies, `sse.py` sends streams, `refusals.py`
and `malformed.py` errors.
`lookups.py`, `media.py` and `remote_media.py` find what a body only names. `peers.py` asks the other servers in front
of the same engines.
"""

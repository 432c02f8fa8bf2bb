"""Wire formats: JSON to requests, events to JSON. Pure functions that know nothing of HTTP.

Each vendor is a package whose `routes.py` has `ROUTES`: its paths, how their bodies are parsed, how responses and
errors look, and their rows in `/openapi.json`. `native/` is srb's own format. `vendors.py` lists the vendors.

Shared: `request/` parses bodies, `reply.py` has what all responses need, `tools/` reads function calls, `tokens.py`
and `tokenize.py` turn texts into tokens and back, `embeddings.py` and `rerank.py` handle vectors.

Start with `route.py`. A parser gets the bytes of a body and a `RequestContext`. It returns a `Reply`, which has the
request for the engine and builds its response, or the JSON of the response itself.
"""

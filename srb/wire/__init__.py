"""The wire formats: they turn JSON into requests, and events into JSON. They know nothing of HTTP.

A folder for each vendor exports one value, `ROUTES` in its `routes.py`: its paths, how bodies are read there and
answers written, its errors, its rows in `/openapi.json`. `native/` is srb's own, and `vendors.py` has the list. What
they have in common is in `request/` (reading), `reply/` (writing), `tools/` (calls of functions), `tokens/` and
`vectors/`. The server mounts what it's given; the terminal uses the native format.

In: the bytes of a body, and a `Serving` with all that a format may know of a server. Out: the JSON of an answer, or a
`Reply`, which has a request and makes its answer. Open `route.py` first.
"""

"""The wire formats: they turn JSON into requests, and events into JSON. They know nothing of HTTP.

A folder for each vendor reads its bodies and writes its answers: `native/` is srb's own. What they have in common is in
`request/` (reading), `reply/` (writing), `tools/` (calls of functions), `tokens/` and `vectors/`. The server and the
terminal use them.

In: the bytes of a body, and a `Serving` with the model's facts. Out: a `Reply`, which has the request and makes its
answer; see `reply/reply.py`.
"""

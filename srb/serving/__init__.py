"""What a server needs of an engine, wherever the engine is: requests that outlive their connection, and their readers.

`engine_client.py` is what the server calls; begin with it. `async_engine.py` is the client of an engine in a thread of
this process, and `early_loading.py` loads its model before it is there; `srb.cluster` has the other client. `roster.py`
has all requests, `journal.py` what one of them has said, and `request_stream.py` reads it. `log_format.py` and
`request_log.py` write the log.

In: a `CompletionRequest`. Out: a `RequestStream` of events.
"""

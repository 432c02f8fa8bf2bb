"""Requests that outlive their connection, and their readers, on an engine in this process or on other machines.

`engine_client.py` is the interface for the server; begin there. `async_engine.py` is the client of an engine in a
thread of this process, and `early_loading.py` loads its model early; `srb.cluster` has the other client.
`request_registry.py` has all requests, and `event_log.py` the events of one request, and its readers. `prefetch.py`
generates alternatives while the engine is idle, `recovery.py` resumes requests after the engine has failed,
`score_tables.py` scores tables, and `logs.py` formats the log.

In: a `CompletionRequest`. Out: a `RequestStream` of events.
"""

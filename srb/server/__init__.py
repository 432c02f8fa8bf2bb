"""The HTTP server: it receives and sends. `srb.wire` parses bodies and builds JSON; the engine does the rest.

`app.py` puts the application together: start there. `routes/` has the handlers, `http/` what they share, `access.py`
the middleware for API keys, hosts and origins, `openapi.py` the description, and `run/` starts and stops the server.
"""

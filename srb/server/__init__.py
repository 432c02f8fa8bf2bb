"""The HTTP server. It only receives and sends: `srb.wire` reads bodies and makes JSON, the engine does the rest.

`app.py` puts all routes together; begin with it. `routes/` has a module per kind of route, `http/` what all of them
share, `guards/` who may ask, `openapi/` the description of all paths, and `run/` starts and stops the server.
"""

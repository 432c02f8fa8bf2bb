"""What people run in a terminal: `srb generate` and `srb compare`.

Both speak in native events and request bodies, whether a server answers or an engine in this process does.
"""

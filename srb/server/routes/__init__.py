"""The server's own routes, a module for each kind. `mount.py` makes the handlers of all vendors'; begin with it."""

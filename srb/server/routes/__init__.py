"""The routes, a module for each kind. `formats.py` has those that generate, in every wire format; begin with it."""

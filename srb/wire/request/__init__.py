"""Reads bodies of all formats: `body.py` makes the engine's request; begin with it. `read.py` reads fields."""

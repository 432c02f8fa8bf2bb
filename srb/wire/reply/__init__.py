"""Writes answers of all formats: `reply.py` is their common interface; begin with it."""

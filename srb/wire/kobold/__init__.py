"""KoboldCpp's format: `body.py` reads, `reply.py` writes."""

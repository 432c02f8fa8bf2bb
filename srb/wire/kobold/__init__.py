"""KoboldCpp's format: `body.py` reads, `reply.py` writes, and `generations.py` tells of what runs."""

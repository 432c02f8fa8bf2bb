"""llama-server's format: `body.py` reads, `reply.py` writes."""

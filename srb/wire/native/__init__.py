"""srb's own format: `start / stream / stop / done` events (`reply.py`), `/v1/explore`, and stories."""

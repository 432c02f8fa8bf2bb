"""Embeddings and rankings, which generate no text."""

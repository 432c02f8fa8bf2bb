"""Keeps requests, their texts, and stories in one SQLite file (`--history`)."""

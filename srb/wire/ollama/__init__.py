"""Ollama's format: `/api/generate`, `/api/chat`, and what tells of models."""

"""Anthropic's format: `/v1/messages`."""

"""Tokens on the wire: routes that turn texts into tokens and back, and fields that name tokens."""

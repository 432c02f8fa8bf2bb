"""srb: n alternatives of one prompt, streamed."""

__version__ = "0.1.0"

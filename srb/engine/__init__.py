"""The engine: pure Python, synchronous, without asyncio, JSON, HTTP or ctypes."""

"""Calls of tools: `offered.py` reads the functions, `tool_calls.py` the calls, in the notation of `call_format.py`."""

"""The HTTP server. It validates, waits and writes; the engine does the rest."""

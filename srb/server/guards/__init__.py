"""Who may ask: API keys (`auth.py`), pages of other origins (`cors.py`), and the names of this host (`hosts.py`)."""

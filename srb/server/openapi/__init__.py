"""The OpenAPI description at /openapi.json, and the page that shows it.

`operations.py`, `format_operations.py` and `history_operations.py` are the table of all paths. `schemas.py` describes
answers, `describe.py` makes the description, and `docs_page.py` the page.
"""

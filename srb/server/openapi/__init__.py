"""The OpenAPI description at /openapi.json, and the page that shows it.

`describe.py` makes the description, from what each route says of itself (`srb/wire/route.py`), and `docs_page.py` makes
the page.
"""

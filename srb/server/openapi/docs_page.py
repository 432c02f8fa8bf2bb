"""Makes one HTML page of the OpenAPI description, by docs_page.html. The page needs no script and no other file."""

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 64rem; margin: 2rem auto; padding: 0 1rem; }
h2 { margin-top: 2.5rem; }
code { font: 14px ui-monospace, monospace; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .25rem .75rem .25rem 0; border-bottom: 1px solid #8884; }
:root { color-scheme: light dark; }
"""

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    f"style-src 'sha256-{base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()}'",
    "X-Content-Type-Options": "nosniff",
}


def render(description: dict[str, Any]) -> str:
    """The page, from an OpenAPI document."""
    import jinja2  # imported here, because only this page needs it

    environment = jinja2.Environment(loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True)
    environment.filters |= {"json": json.dumps, "number": "{:,}".format}
    html: str = environment.get_template("docs_page.html").render(description, style=STYLE)
    return html

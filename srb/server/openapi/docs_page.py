"""Makes one HTML page of the OpenAPI description. The page needs no script and no other file."""

import base64
import hashlib
import json
from html import escape
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
    info = description["info"]
    parts = [f"<h1>{escape(info['title'])} {escape(info['version'])}</h1><p>{escape(info['description'])}</p>"]
    for path, methods in description["paths"].items():
        parts += [_operation(method.upper(), path, operation) for method, operation in methods.items()]
    parts += [_schema(name, schema) for name, schema in description["components"]["schemas"].items()]
    head = (
        f"<meta charset=utf-8><meta name=viewport content='width=device-width'><title>{escape(info['title'])}</title>"
    )
    return f"<!doctype html><html lang=en><head>{head}<style>{STYLE}</style></head><body>{''.join(parts)}</body></html>"


def _operation(method: str, path: str, operation: dict[str, Any]) -> str:
    parts = [f"<h2><code>{method} {escape(path)}</code></h2><p>{escape(operation['summary'])}.</p>"]
    parts += [
        f"<p><code>{escape(parameter['name'])}</code>: {escape(parameter['description'])}.</p>"
        for parameter in operation.get("parameters", ())
    ]
    if "requestBody" in operation:
        parts.append(f"<p>Body: {_content(operation['requestBody'])}</p>")
    rows = [
        f"<td>{status}</td><td>{escape(response['description'])}</td><td>{_content(response)}</td>"
        for status, response in operation["responses"].items()
    ]
    return "".join(parts) + _table(("status", "", ""), rows)


def _content(holder: dict[str, Any]) -> str:
    return "<br>".join(
        f"<code>{escape(kind)}</code>: {escape(schema.get('description', '')) or _type(schema)}"
        for kind, schema in ((kind, content["schema"]) for kind, content in holder.get("content", {}).items())
    )


def _schema(name: str, schema: dict[str, Any]) -> str:
    title = f"<h2 id='{escape(name)}'>{escape(name)}</h2><p>{escape(schema.get('description', ''))}</p>"
    if "properties" not in schema:
        return f"{title}<p>{_type(schema)}</p>"
    required = schema.get("required", ())
    rows = [
        f"<td><code>{escape(field)}</code></td><td>{_type(each)}</td><td>{_range(each)}</td>"
        f"<td>{'required' if field in required else _default(each)}</td><td>{escape(each.get('description', ''))}</td>"
        for field, each in schema["properties"].items()
    ]
    return title + _table(("field", "type", "range", "default", ""), rows)


def _table(heads: tuple[str, ...], rows: list[str]) -> str:
    head = "".join(f"<th>{each}</th>" for each in heads)
    return f"<table><tr>{head}</tr>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"


def _type(schema: dict[str, Any]) -> str:
    """A type in words, as HTML. Null is left out, because any field may be null."""
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        return f"<a href='#{name}'>{name}</a>"
    if "anyOf" in schema:
        return " or ".join(filter(None, map(_type, schema["anyOf"])))
    if "enum" in schema or "const" in schema:
        return " or ".join(_json(value) for value in schema.get("enum", [schema.get("const")]))
    if schema.get("type") == "array":
        return f"list of {_type(schema['items'])}"
    if schema.get("type") == "object" and "properties" in schema:
        fields = ", ".join(f"{escape(name)}: {_type(each)}" for name, each in schema["properties"].items())
        return f"object ({fields})"
    types = schema.get("type", "anything")
    return " or ".join(each for each in ([types] if isinstance(types, str) else types) if each != "null")


def _range(schema: dict[str, Any]) -> str:
    return f"{schema['minimum']:,} to {schema['maximum']:,}" if "minimum" in schema else ""


def _default(schema: dict[str, Any]) -> str:
    return _json(schema["default"]) if "default" in schema else ""


def _json(value: Any) -> str:
    return f"<code>{escape(json.dumps(value))}</code>"

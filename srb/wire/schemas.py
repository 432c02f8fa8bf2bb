"""JSON schemas of answers, for the rows of the OpenAPI description."""

from typing import Any

Schema = dict[str, Any]

JSON = "application/json"
EVENTS = "text/event-stream"
LINES = "application/x-ndjson"


def object_of(**properties: Schema) -> Schema:
    """An object with at least these properties."""
    return {"type": "object", "required": list(properties), "properties": properties}


def alike(schema: Schema, names: str) -> dict[str, Schema]:
    """Properties of the same kind. names: theirs, with spaces between them."""
    return dict.fromkeys(names.split(), schema)


def list_of(items: Schema) -> Schema:
    """A list of such items."""
    return {"type": "array", "items": items}


def data_of(items: Schema, **more: Schema) -> Schema:
    """A list of such items, as OpenAI has lists."""
    return object_of(object={"const": "list"}, data=list_of(items), **more)


STRING: Schema = {"type": "string"}
INTEGER: Schema = {"type": "integer"}
NUMBER: Schema = {"type": "number"}
BOOLEAN: Schema = {"type": "boolean"}
OBJECT: Schema = {"type": "object"}
OPTIONAL_STRING: Schema = {"type": ["string", "null"]}
OPTIONAL_INTEGER: Schema = {"type": ["integer", "null"]}
ONE_OR_MORE: Schema = {"type": ["object", "array"]}

EVENT_STREAM: Schema = {
    "description": "lines `data: {...}` with the native events start, stream, stop, error and done, each behind a line "
    "`id: N`, or with OpenAI's chunks and [DONE]"
}

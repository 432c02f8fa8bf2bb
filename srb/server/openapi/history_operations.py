"""The paths for stories and for what was generated earlier, for the table in operations.py."""

from srb.server.openapi.schemas import (
    EVENTS,
    INTEGER,
    JSON,
    OPTIONAL_STRING,
    STRING,
    Operation,
    Schema,
    list_of,
    object_of,
)
from srb.wire.native.stories import NodeFields, RemarkFields, StoryFields, TitleFields

BOOLEAN_OR_NULL: Schema = {"type": ["boolean", "null"]}
OPTIONAL_INTEGER: Schema = {"type": ["integer", "null"]}
NODE = object_of(
    id=INTEGER,
    parent=OPTIONAL_INTEGER,
    text=STRING,
    tokens={"type": ["array", "null"], "items": INTEGER},
    author={"enum": ["model", "person"]},
    request=OPTIONAL_STRING,
    index=OPTIONAL_INTEGER,
    seed=OPTIONAL_INTEGER,
    settings={"type": ["object", "null"]},
    label=OPTIONAL_STRING,
    length=OPTIONAL_INTEGER,
    finish_reason=OPTIONAL_STRING,
    stop_reason=OPTIONAL_STRING,
    kept=BOOLEAN_OR_NULL,
    notes=OPTIONAL_STRING,
    created=INTEGER,
    change=INTEGER,
)
STORY = object_of(
    id=STRING,
    object={"const": "story"},
    title=STRING,
    created=INTEGER,
    changed=INTEGER,
    change=INTEGER,
    node_count=INTEGER,
)

_OFF = (404, 501, 503)
HISTORY_OPERATIONS = (
    Operation(
        method="GET",
        path="/v1/stories",
        summary="The stories that the server keeps, with --history",
        reply={JSON: object_of(object={"const": "list"}, data=list_of(STORY))},
        errors=(501, 503),
    ),
    Operation(
        method="POST",
        path="/v1/stories",
        summary="Begin a story, or bring one from another place",
        body=StoryFields,
        reply={JSON: STORY},
        errors=(400, 413, 501, 503),
    ),
    Operation(
        method="GET",
        path="/v1/stories/{story}",
        summary="A story with all its nodes, or the text that leads to one of them",
        query={"format": "json or markdown", "node": "with markdown, the id of the node that the text goes to"},
        reply={JSON: STORY, "text/markdown": STRING},
        errors=(400, *_OFF),
    ),
    Operation(
        method="PATCH",
        path="/v1/stories/{story}",
        summary="Give a story another title",
        body=TitleFields,
        reply={JSON: STORY},
        errors=(400, 413, *_OFF),
    ),
    Operation(
        method="DELETE",
        path="/v1/stories/{story}",
        summary="Delete a story, and the requests that were made in it",
        errors=_OFF,
    ),
    Operation(
        method="GET",
        path="/v1/stories/{story}/nodes",
        summary="What is new in a story; as a stream of events, what becomes new, too",
        query={"since": "the number of the last change that is known"},
        reply={
            JSON: object_of(object={"const": "list"}, data=list_of(NODE), change=INTEGER),
            EVENTS: {"description": "lines `data: {...}` with the events node, text, story, deleted and error"},
        },
        errors=(400, *_OFF),
    ),
    Operation(
        method="POST",
        path="/v1/stories/{story}/nodes",
        summary="Add a text to a story",
        body=NodeFields,
        reply={JSON: NODE},
        errors=(400, 413, *_OFF),
    ),
    Operation(
        method="GET",
        path="/v1/stories/{story}/nodes/{node}",
        summary="A node of a story, with all earlier values of `kept`, `ends_at` and `notes`",
        reply={JSON: NODE},
        errors=_OFF,
    ),
    Operation(
        method="PATCH",
        path="/v1/stories/{story}/nodes/{node}",
        summary="Mark a node as kept or discarded, let it end earlier, or give it notes",
        body=RemarkFields,
        reply={JSON: NODE},
        errors=(400, 413, *_OFF),
    ),
    Operation(
        method="GET",
        path="/v1/history",
        summary="The last requests, or the texts that have these words",
        query={
            "q": "words that a text must have",
            "limit": "how many, 50 if it's left out",
            "before": "where the answer before has ended, which says so in its own `before`",
            "story": "without `q`: only the requests of this story",
        },
        reply={JSON: object_of(object={"const": "list"}, data=list_of({"type": "object"}))},
        errors=(400, *_OFF),
    ),
    Operation(
        method="GET",
        path="/v1/history/{id}",
        summary="A request that was kept, with its body and its alternatives",
        reply={JSON: {"type": "object"}},
        errors=_OFF,
    ),
    Operation(
        method="DELETE",
        path="/v1/history/{id}",
        summary="Remove a request that has ended; stories keep its texts",
        errors=_OFF,
    ),
)

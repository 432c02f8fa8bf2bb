"""The table that the OpenAPI description is made from: every path of the server, with its bodies and its answers."""

from srb.server.openapi.format_operations import FORMAT_OPERATIONS
from srb.server.openapi.history_operations import HISTORY_OPERATIONS
from srb.server.openapi.schemas import (
    BOOLEAN,
    EVENT_STREAM,
    EVENTS,
    HEALTH,
    INTEGER,
    JSON,
    ONE_OR_MORE,
    REQUEST,
    STATE,
    STRING,
    Operation,
    list_of,
    object_of,
)
from srb.server.routes.embeddings import RANKING
from srb.wire.native.bodies import AdapterFields, SlotFields
from srb.wire.vectors.rerank import RerankFields

OPERATIONS = (
    Operation(
        method="GET",
        path="/v1/completions/{id}",
        summary="How far a request is, with its texts so far; for chats, too",
        reply={JSON: STATE},
        errors=(404, 410),
    ),
    *(
        Operation(
            method="GET",
            path=path,
            summary="Read a request again: all of it in its own format, or the native events behind one event",
            query={"starting_after": "the id of the last native event that was read; the header Last-Event-ID wins"},
            reply={EVENTS: EVENT_STREAM, JSON: ONE_OR_MORE},
            errors=(400, 404, 410, 503),
        )
        for path in ("/v1/completions/{id}/events", "/v1/chat/completions/{id}/events")
    ),
    Operation(
        method="DELETE",
        path="/v1/completions/{id}",
        summary="End a request, or forget one that has finished",
        errors=(404,),
    ),
    Operation(
        method="DELETE",
        path="/v1/completions/{id}/choices/{index}",
        summary="End one alternative; the others go on",
        errors=(404,),
    ),
    Operation(
        method="GET",
        path="/v1/requests",
        summary="The requests that wait and run",
        reply={JSON: object_of(object={"const": "list"}, data=list_of(REQUEST))},
    ),
    Operation(method="GET", path="/metrics", summary="Measurements for Prometheus", reply={"text/plain": STRING}),
    *FORMAT_OPERATIONS,
    *HISTORY_OPERATIONS,
    *(
        Operation(
            method="POST",
            path=path,
            summary="Rank documents by how well they answer a query, the best first, with --reranking",
            body=RerankFields,
            reply={JSON: ONE_OR_MORE},
            errors=(400, 413, 429, 501, 503),
        )
        for path in RANKING
    ),
    Operation(
        method="GET",
        path="/slots",
        summary="The running alternatives and their settings",
        reply={JSON: list_of({"type": "object"})},
        errors=(501, 503),
    ),
    Operation(
        method="GET",
        path="/lora-adapters",
        summary="The adapters that were loaded with --lora, and their scales for requests that name none",
        reply={JSON: list_of(object_of(id=INTEGER, name=STRING, path=STRING, scale={"type": "number"}))},
        errors=(501, 503),
    ),
    Operation(
        method="POST",
        path="/lora-adapters",
        summary="Set the scales of adapters for the requests that follow; adapters that aren't named get 0",
        body=AdapterFields,
        reply={JSON: object_of(success=BOOLEAN)},
        errors=(400, 413, 501, 503),
    ),
    Operation(
        method="POST",
        path="/slots/{id_slot}",
        summary="Save what was last evaluated in a slot to a file, restore it, or erase it, with --slot-save-path",
        query={"action": "save, restore or erase"},
        body=SlotFields,
        reply={JSON: object_of(id_slot=INTEGER)},
        errors=(400, 413, 501, 503),
    ),
    *(
        Operation(
            method="GET",
            path=path,
            summary="Whether the server takes requests, and how many run",
            reply={JSON: HEALTH},
            errors=(503,),
        )
        for path in ("/health", "/v1/health")
    ),
    Operation(method="GET", path="/openapi.json", summary="This description", reply={JSON: {"type": "object"}}),
    Operation(method="GET", path="/", summary="The page: alternatives side by side", reply={"text/html": STRING}),
    Operation(method="GET", path="/docs", summary="This description as a page", reply={"text/html": STRING}),
)

"""The paths of Anthropic's format, OpenAI's responses, Ollama and TGI, for the table in operations.py."""

from dataclasses import replace

from srb.server.openapi.schemas import (
    BOOLEAN,
    JSON,
    STRING,
    Operation,
    object_of,
)
from srb.wire.openai.routes import RESPONSE, RESPONSE_EVENTS

FORMAT_OPERATIONS = (
    *(
        replace(each, path=f"{base}/responses/{{id}}{each.path}")
        for base in ("/v1", "/openai/v1")
        for each in (
            Operation(
                method="GET",
                path="",
                summary="A response so far, or its events from the beginning or behind one event",
                query={
                    "stream": "true: answer with the events",
                    "starting_after": "the sequence_number of the event behind which they begin",
                },
                reply={JSON: RESPONSE, **RESPONSE_EVENTS},
                errors=(400, 404, 410),
            ),
            Operation(
                method="DELETE",
                path="",
                summary="End a response, and forget it",
                reply={JSON: object_of(id=STRING, object={"const": "response"}, deleted=BOOLEAN)},
                errors=(404, 410),
            ),
            Operation(
                method="POST",
                path="/cancel",
                summary="End a response; the answer is what there is of it",
                reply={JSON: RESPONSE},
                errors=(404, 410),
            ),
        )
    ),
)

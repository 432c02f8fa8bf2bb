"""The paths of Anthropic's format, OpenAI's responses, Ollama and TGI, for the table in operations.py."""

from dataclasses import replace

from srb.server.openapi.schemas import (
    BOOLEAN,
    EVENTS,
    INTEGER,
    JSON,
    STRING,
    Operation,
    list_of,
    object_of,
)
from srb.wire.anthropic.messages import MessagesFields
from srb.wire.openai.responses_body import ResponseFields

_GENERATES = (400, 413, 429, 503)

_ANTHROPIC_ERROR = object_of(type={"const": "error"}, error=object_of(type=STRING, message=STRING))
_COUNTED = object_of(object={"const": "response.input_tokens"}, input_tokens=INTEGER)
_RESPONSE = object_of(id=STRING, object={"const": "response"}, status=STRING, output=list_of({"type": "object"}))
_RESPONSE_EVENTS = {"description": "OpenAI's typed events, from response.created on"}
_MESSAGE = object_of(id=STRING, type={"const": "message"}, content=list_of({"type": "object"}))

FORMAT_OPERATIONS = (
    Operation(
        method="POST",
        path="/v1/messages",
        summary="Continue a conversation, as Anthropic does: a message, or events",
        body=MessagesFields,
        reply={EVENTS: {"description": "Anthropic's events, from message_start to message_stop"}, JSON: _MESSAGE},
        error=_ANTHROPIC_ERROR,
        errors=_GENERATES,
    ),
    Operation(
        method="POST",
        path="/v1/messages/count_tokens",
        summary="How many tokens the prompt of such a conversation has",
        body=MessagesFields,
        reply={JSON: object_of(input_tokens=INTEGER)},
        error=_ANTHROPIC_ERROR,
        errors=(400, 413, 503),
    ),
    *(
        Operation(
            method="POST",
            path=path,
            summary=summary,
            body=ResponseFields,
            reply={EVENTS: _RESPONSE_EVENTS, JSON: _RESPONSE},
            errors=_GENERATES,
        )
        for path, summary in (
            ("/v1/responses", "Go on with a conversation, as OpenAI's responses do: an object, or events"),
            ("/openai/v1/responses", "The same"),
            ("/responses", "The same"),
        )
    ),
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
                reply={JSON: _RESPONSE, EVENTS: _RESPONSE_EVENTS},
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
                reply={JSON: _RESPONSE},
                errors=(404, 410),
            ),
        )
    ),
    *(
        Operation(
            method="POST",
            path=path,
            summary="How many tokens the prompt of such a conversation has",
            body=ResponseFields,
            reply={JSON: _COUNTED},
            errors=(400, 413, 503),
        )
        for path in ("/v1/responses/input_tokens", "/openai/v1/responses/input_tokens", "/responses/input_tokens")
    ),
)

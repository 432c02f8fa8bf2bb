"""srb's own format: native events, and the routes that only srb has."""

from srb.wire.native.explore import ExploreFields, parse_explore
from srb.wire.route import EVENTS, GenerateHandler, post

_TREE = {
    "description": "lines `data: {...}` with the native events start, node, error and done; a node has its `id`, "
    "the id of its `parent` (null: it continues the prompt), `text`, `tokens`, `logprob`, "
    "`cumulative_logprob`, `entropy` and `finish_reason`"
}

ROUTES = (
    post(
        "/v1/explore",
        GenerateHandler(parse_explore),
        other_schemas={EVENTS: _TREE},
        body=ExploreFields,
    ),
)

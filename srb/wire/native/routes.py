"""The routes that only srb has."""

from srb.wire.native.explore import ExploreFields, read
from srb.wire.route import Generates, post
from srb.wire.schemas import EVENTS

_TREE = {
    "description": "lines `data: {...}` with the native events start, node, error and done; a node has its `id`, "
    "the id of its `parent` (null: it goes on from the prompt), `text`, `tokens`, `logprob`, "
    "`cumulative_logprob`, `entropy` and `finish_reason`"
}

ROUTES = (post("/v1/explore", Generates(read), others={EVENTS: _TREE}, body=ExploreFields),)

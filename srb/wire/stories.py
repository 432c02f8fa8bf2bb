"""The bodies of the routes for stories."""

import json
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from srb.wire.request.read import Float, Id, Text

MAX_TITLE_CHARS = 1_000


def _check_numbers(settings: dict[str, Any]) -> dict[str, Any]:
    json.dumps(settings, allow_nan=False)  # raises `ValueError`: 1e999 is read as an infinity, which JSON can't have
    return settings


Object = Annotated[dict[str, Any], AfterValidator(_check_numbers)]
StopReason = Annotated[Text, BeforeValidator(lambda value: str(value) if type(value) is int else value)]
Tokens = list[Annotated[int, Field(ge=0, lt=2**31)]]

_CONTEXT = "an object of any fields, stored with the story unchanged. It replaces the previous one."


class _Fields(BaseModel):
    model_config = ConfigDict(extra="allow")

    @property
    def ignored(self) -> list[str]:
        """The names of the fields that were sent and have no effect."""
        return list(self.model_extra or ())


class NodeFields(_Fields):
    """The body of `POST /v1/stories/{story}/nodes`."""

    parent: Id | None = Field(
        None, description="the id of the node that this one continues. Left out: this node begins the story."
    )
    text: Text = Field(description="the text of the node.")
    author: Literal["person", "model"] = Field("person", description="who wrote the node.")
    notes: Text | None = Field(None, description="a note about the node.")
    tokens: Tokens | None = Field(None, description="the ids of the tokens of exactly this text, if they are known.")
    kept: bool | None = Field(None, description="true: it was chosen; false: it was discarded.")
    label: Text | None = Field(None, description="a name for the node.")
    request: Text | None = Field(None, description="the id of the request that the node comes from.")
    index: Id | None = Field(None, description="the index of the alternative in this request.")
    seed: Id | None = Field(None, description="the seed that the text was sampled with.")
    settings: Object | None = Field(
        None, description="the settings that the text was sampled with, without those at their defaults."
    )
    length: Id | None = Field(None, description="how many tokens were generated.")
    finish_reason: Literal["stop", "length", "abort", "error"] | None = Field(None, description="why the text ended.")
    stop_reason: StopReason | None = Field(
        None, description="the stop string or the id of the token at which the text ended, or why it was aborted."
    )
    suffix_logprob: Float | None = Field(
        None, le=0, description="of a bridge, the log-probability (natural) of the text that it leads to."
    )
    created: Id | None = Field(None, description="when it was written, in seconds since 1970. Left out: now.")


class ImportedNodeFields(NodeFields):
    """A node of a whole tree, as `GET /v1/stories/{story}` shows it."""

    id: Id | Text | None = Field(
        None, description="an id that the `parent` of other nodes names; the node gets a new one."
    )
    parent: Id | Text | None = Field(  # type: ignore[assignment]
        None, description="the id of the node that this one continues. Left out: this node begins the story."
    )
    change: Any = Field(None, description="has no effect.")
    ends_at: Any = Field(None, description="has no effect: the text ends there already.")


class ImportedDraftFields(_Fields):
    """A draft of a whole story, as `GET /v1/stories/{story}` shows it."""

    node: Id | Text = Field(0, description="the `id` of the node where it was typed; 0: the beginning.")
    text: Text | None = Field(None, description="the typed text.")
    metadata: Object | None = Field(None, description="an object of any fields, stored with the draft unchanged.")
    changed: Any = Field(None, description="has no effect.")
    change: Any = Field(None, description="has no effect.")


class StoryFields(_Fields):
    """The body of `POST /v1/stories`: a title, or a story as `GET /v1/stories/{story}` shows it."""

    title: Text = Field("", max_length=MAX_TITLE_CHARS, description="the title of the story.")
    context: Object | None = Field(None, description=_CONTEXT)
    nodes: list[ImportedNodeFields] = Field([], description="the nodes that the story begins with.")
    drafts: list[ImportedDraftFields] = Field([], description="its drafts.")
    place: Any = Field(None, description="has no effect: the nodes get new ids.")

    @property
    def ignored(self) -> list[str]:
        """The names of the fields that were sent and have no effect.

        Fields that `GET /v1/stories/{story}` shows, such as `created`, aren't among them.
        """
        known = {"id", "object", "created", "changed", "change", "node_count", "deleted"}
        of_nodes = {f"nodes.{name}": None for node in self.nodes for name in node.ignored}
        of_drafts = {f"drafts.{name}": None for draft in self.drafts for name in draft.ignored}
        return [*(name for name in super().ignored if name not in known), *of_nodes, *of_drafts]


class StoryChangeFields(_Fields):
    """The body of `PATCH /v1/stories/{story}`. Fields that are left out stay; null removes a value."""

    title: Text = Field("", max_length=MAX_TITLE_CHARS, description="the title of the story.")
    context: Object | None = Field(None, description=_CONTEXT)
    place: Object | None = Field(
        None, description="an object of any fields that says where the writer is. It replaces the previous one."
    )
    deleted: None = Field(None, description="null takes the story out of the trash.")
    since: Id | None = Field(
        None,
        description="the number of the change that the title and the context are based on. If they were changed later: "
        "409. Left out: they replace any.",
    )


class DraftFields(_Fields):
    """The body of `PUT /v1/stories/{story}/drafts/{node}`."""

    text: Text | None = Field(None, description="the typed text. null: the draft is removed.")
    metadata: Object | None = Field(None, description="an object of any fields, stored with the draft unchanged.")
    since: Id = Field(
        0, description="the `change` of the draft that this text is based on. If it was changed later: 409."
    )


class RemarkFields(_Fields):
    """The body of `PATCH /v1/stories/{story}/nodes/{node}`. Fields that are left out stay; null removes a value."""

    kept: bool | None = Field(None, description="true: it was chosen; false: it was discarded.")
    notes: Text | None = Field(None, description="a note about the node.")
    ends_at: Id | None = Field(
        None,
        description="how many characters of its text belong to the story: the node ends there. The rest isn't shown, "
        "and isn't in the prompts of nodes that continue this one.",
    )

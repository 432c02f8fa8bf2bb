"""The keys of texts: a text is found only by prompts with its key, so only these may begin with what it has evaluated.

What must be equal beside the tokens makes the key: who shares the text (`CompletionRequest.shared_within`), adapters,
images. A prompt of a request with `shared_within` is looked for with two keys: with its own, and with the key that it
would have if it were shared with all. An example, with two requests that are shared within "a" and within "b":

    for all:     tokens 0 to 900          instructions, found by both
    within "a":  └─ tokens 900 to 950     a question behind them, found by the first one alone
"""

Keys = tuple[str, ...]
"""The keys that a text is looked for with. The first one is its own: what is kept of the text has this key."""

FOR_ALL: Keys = ("",)


def keys_of(within: str, how: str = "") -> Keys:
    """The keys of a text. within: `shared_within`. how: what else must be equal; empty for most texts."""
    return (f"{within}\n{how}", how) if within else (how,)

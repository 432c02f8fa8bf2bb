"""Options that srb had once. Whoever still gives one is told what to do."""

from typing import Final

_BEGINNING = "A beginning that prompts have in common is evaluated once without it."

REMOVED: Final[dict[str, str]] = {
    "cache_reuse": _BEGINNING,
    "keep_bytes": "Finished requests take at most 256 MiB.",
    "lark": "--grammar takes Lark, too, below a first line %llguidance {}.",
    "max_rewinds": "An alternative may go back 1,000 times.",
    "n_cache_reuse": _BEGINNING,
    "p_less": "--min-p with --samplers 'temperature, min_p' comes closest.",
    "top_h": "--min-p with --samplers 'temperature, min_p' comes closest.",
}
"""The name of each removed option, with underscores, and what there is in its place."""


def refusal_of(name: str) -> str | None:
    """What is said of a removed option, after its name; None if there never was one.

    name: with hyphens or underscores, and with or without the hyphens before it.
    """
    instead = REMOVED.get(name.lstrip("-").replace("-", "_"))
    return instead and f"was removed; leave it out. {instead}"

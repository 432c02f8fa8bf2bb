"""Options and request fields that srb no longer has, with what to do instead.

docs/http/api.md has the same names under *Removed fields*. A removed field in a request body is ignored and reported,
as every unknown field is; only the command line, variables and TOML files need this table.
"""

_REUSES = "leave it out; a prompt begins with all that is cached of its beginning, and the rest is evaluated"
_NARROWS = "leave it out; min_p and top_n_sigma also leave few tokens where the model is sure"

REMOVED = {
    "cache_reuse": _REUSES,
    "ignore_model_sampling": "leave it out; a field of a request counts before what the model's file names",
    "keep_bytes": "leave it out; finished requests take at most 256 MiB",
    "max_rewinds": "leave it out; an alternative may go back 1,000 times",
    "n_cache_reuse": _REUSES,
    "p_less": _NARROWS,
    "particles": "use --candidates, which a bridge scores",
    "prefill_chunk": "leave it out; prompts get what fits into a pause of 0.3 s between two tokens",
    "power": "leave it out; a lower --temperature or --search beam comes closest",
    "suffix_tokens": "leave it out; the first 64 tokens of the suffix are scored",
    "top_h": _NARROWS,
}
"""What to do instead, by name: an option's as an attribute of `Settings` has it, or a request field's."""


def removal(given: str) -> str | None:
    """Return the message for a removed name, or None for any other name.

    Args:
        given: the name as the user wrote it: `--flag`, `--no-flag`, `SRB_VARIABLE`, a TOML key or a field.
    """
    name = given.removeprefix("SRB_").lstrip("-").replace("-", "_").lower().removeprefix("no_")
    return f"{given} was removed: {REMOVED[name]}" if name in REMOVED else None

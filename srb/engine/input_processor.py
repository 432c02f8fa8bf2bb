"""Input processor: makes the prompts and sequences of a request, and refuses requests that can never run."""

from srb.engine.backend import Backend
from srb.engine.constraints.base import ConstraintSetup
from srb.engine.constraints.builders import add_constraints
from srb.engine.decoding.base import EngineParts
from srb.engine.decoding.sampling import NegativeStrategy
from srb.engine.decoding.strategies import strategy_of
from srb.engine.limits import RequestLimits, check_supported, resolve
from srb.engine.lora import Adapters
from srb.engine.model import Tokenizer
from srb.engine.output.detokenizer import StopStrings
from srb.engine.output.logprobs import Replay, report_of
from srb.engine.prompt_scores import Scores
from srb.engine.request import CompletionRequest, Resumed
from srb.engine.resume import prompt_groups, restarted
from srb.engine.sequence import ActiveRequest, Prompt


def build_request(
    request: CompletionRequest, adapters: Adapters, parts: EngineParts, default_max_tokens: int
) -> ActiveRequest:
    """Return a request that can be queued: its prompts and sequences, with their strategy, constraints and report.

    It may be called from any thread. Token healing (`heal`) removes a prompt's last token here. Then the sampler takes
    the first token from those that begin with its text, and the output processor leaves this text out.

    Raises `InvalidRequestError`.

    Args:
        default_max_tokens: The `max_tokens` of alternatives that have none.
    """
    backend, n = parts.backend, len(request.branches)
    has_suffix, request = request.suffix is not None, resolve(request, backend.tokenizer.special, backend)
    strategy = strategy_of(request, backend, default_max_tokens)
    report = report_of(request, backend)
    if request.resumed and not strategy.restarts:
        is_exact = request.resumed[0].fingerprint == backend.fingerprint != ""
        if is_exact or any(params.learns for params in request.branches):
            report, request = Replay(report, request.resumed), restarted(request)
    compiled = backend.compile(request.branches, request.special_tokens, request.post_sampling_probs)
    variants = [(adapters.lora(params.lora), params.direction_ids) for params in request.branches]
    active = ActiveRequest(request, compiled, report, parts.clock(), backend.block_size)
    if has_suffix:
        active.infill = "model" if request.suffix is None else "bridge"
    stops = {strings: StopStrings(strings) for strings in {params.stop for params in request.branches} if strings}
    resumed = request.resumed or (Resumed(),) * request.count
    asked = [_healed(tokens, backend.tokenizer) if request.heal else (tokens, b"") for tokens in request.token_ids]
    for number, (tokens, repeated) in enumerate(asked):
        for lora, direction in dict.fromkeys(variants):
            variant = lora, direction
            theirs = {number * n + k: resumed[number * n + k] for k, each in enumerate(variants) if each == variant}
            whole = _directed(tokens, direction, request.direction_at, backend.tokenizer) if direction else tokens
            for group in prompt_groups(theirs, restarts=strategy.restarts):
                prompt = Prompt(active, whole, group, stops, lora, repeated, restarts=strategy.restarts)
                if request.scored_top is not None:
                    prompt.scores = Scores(prompt.packed, request.scored_top)
                active.prompts.append(prompt)
    add_constraints(ConstraintSetup(active, backend, asked, resumed, stops))
    for prompt in active.prompts:
        prompt.strategy = strategy(prompt, parts)
    for prompt in active.negative_prompts:
        prompt.strategy = NegativeStrategy(prompt, parts)
    return active


def _healed(tokens: tuple[int, ...], tokenizer: Tokenizer) -> tuple[tuple[int, ...], bytes]:
    """Return a prompt without its last token, and the bytes of that token, if other tokens begin with these bytes.

    Otherwise return the whole prompt, and no bytes: also if its last token follows an image, which has no logits.
    """
    text = tokenizer.piece(tokens[-1])
    if len(tokens) > 1 and tokens[-2] >= 0 and text and len(tokenizer.beginning_with(text)) > 1:
        return tokens[:-1], text
    return tokens, b""


MAX_LAST_LINE = 256
"""The most tokens after a direction. Each alternative evaluates them itself."""


def _directed(
    tokens: tuple[int, ...], direction: tuple[int, ...], place: int | None, tokenizer: Tokenizer
) -> tuple[int, ...]:
    """Return a prompt with a direction at a place, or else before its last line.

    So the text goes on where the prompt ends, and not after the direction.
    """
    if place is None:
        least = max(len(tokens) - MAX_LAST_LINE, int(tokens[0] == tokenizer.special.bos))
        ends = (k for k in range(len(tokens), least, -1) if b"\n" in tokenizer.special_piece(tokens[k - 1]))
        place = next(ends, least)
    return tokens[:place] + direction + tokens[place:]


def check_request(
    request: CompletionRequest, limits: RequestLimits, backend: Backend, adapters: Adapters, default_max_tokens: int
) -> None:
    """Refuses a request that can never run: raises `InvalidRequestError`. May be called from any thread."""
    request = resolve(request, backend.tokenizer.special, backend)
    limits.check(request)
    check_supported(request, backend, default_max_tokens)
    for params in request.branches:
        adapters.lora(params.lora)

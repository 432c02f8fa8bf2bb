"""`activate`: makes the prompts and sequences of a request, with the way, the rules and the report that it asks for.

A prompt's last token is taken back here (`heal`). Only two others know of it: the sampler draws the first token from
those that begin with its text, and the outbox leaves this text out.
"""

from srb.engine.asking.infill import resolve
from srb.engine.asking.model import Tokenizer
from srb.engine.asking.request import CompletionRequest, Resumed
from srb.engine.asking.resume import begun_anew, groups
from srb.engine.prompts.adapters import Adapters
from srb.engine.prompts.scores import Scores
from srb.engine.rules import give_rules
from srb.engine.rules.setup import Setup
from srb.engine.sequence import ActiveRequest, Prompt
from srb.engine.telling.reports import report_of
from srb.engine.telling.retelling import Retelling
from srb.engine.telling.text import StopStrings
from srb.engine.ways import Following, Tools, kind_of
from srb.engine.ways.given import give_tokens


def activate(request: CompletionRequest, adapters: Adapters, tools: Tools, default_max_tokens: int) -> ActiveRequest:
    """Makes a request that can be queued. May be called from any thread. Raises `InvalidRequestError`."""
    backend, n = tools.backend, len(request.branches)
    has_suffix, request = request.suffix is not None, resolve(request, backend.tokenizer.special, backend)
    kind = kind_of(request, backend, default_max_tokens)
    report = report_of(request, backend)
    if request.resumed and request.resumed[0].fingerprint == backend.fingerprint != "" and not kind.begins_anew:
        report, request = Retelling(report, request.resumed), begun_anew(request)
    compiled = backend.compile(request.branches, request.special_tokens)
    loras = [adapters.lora(params.lora) for params in request.branches]
    active = ActiveRequest(request, compiled, report, tools.clock(), backend.block_size)
    if has_suffix:
        active.infill = "model" if request.suffix is None else "bridge"
    stops = {strings: StopStrings(strings) for strings in {params.stop for params in request.branches} if strings}
    resumed = request.resumed or (Resumed(),) * request.count
    asked = [_healed(tokens, backend.tokenizer) if request.heal else (tokens, b"") for tokens in request.token_ids]
    for number, (tokens, repeated) in enumerate(asked):
        for lora in dict.fromkeys(loras):
            begun = {number * n + k: resumed[number * n + k] for k, each in enumerate(loras) if each == lora}
            for group in groups(begun, begins_anew=kind.begins_anew):
                prompt = Prompt(active, tokens, group, stops, lora, repeated, begins_anew=kind.begins_anew)
                if request.scores_prompt:
                    prompt.scores = Scores(prompt.packed, request.logprobs or 0)
                active.prompts.append(prompt)
    give_tokens(active)
    give_rules(Setup(active, backend, asked, resumed, stops))
    for prompt in active.prompts:
        prompt.way = kind(prompt, tools)
    for prompt in active.companions:
        prompt.way = Following(prompt, tools)
    return active


def _healed(tokens: tuple[int, ...], tokenizer: Tokenizer) -> tuple[tuple[int, ...], bytes]:
    """A prompt without its last token, and the bytes of that token, if other tokens begin with the same bytes.

    Otherwise the whole prompt, and no bytes. So is a prompt whose last token stands behind an image: there are no
    logits behind an image.
    """
    text = tokenizer.piece(tokens[-1])
    if len(tokens) > 1 and tokens[-2] >= 0 and text and len(tokenizer.beginning_with(text)) > 1:
        return tokens[:-1], text
    return tokens, b""

"""`Facade`: what other threads may ask an engine. They needn't wait for a step."""

from collections.abc import Sequence

from srb.engine.backend import Backend
from srb.engine.constraints.builders import add_constraints
from srb.engine.constraints.setup import ConstraintSetup
from srb.engine.decoding.sampling import NegativeStrategy
from srb.engine.decoding.scoring import give_tokens
from srb.engine.decoding.strategies import strategy_of
from srb.engine.decoding.strategy import EngineParts
from srb.engine.infill import resolve
from srb.engine.limits import RequestLimits, check_supported
from srb.engine.lora import Adapters
from srb.engine.media import Media, MediaReader, PromptPart
from srb.engine.model import ChatTemplate, Embedder, ModelInfo, Tokenizer
from srb.engine.output.detokenizer import StopStrings
from srb.engine.output.logprobs import Replay, report_of
from srb.engine.prompt_logprobs import Scores
from srb.engine.request import CompletionRequest, Resumed
from srb.engine.resume import begun_anew, groups
from srb.engine.sequence import ActiveRequest, Prompt

# `build_request`: makes the prompts and sequences of a request, with the way, the rules and the report that it asks
# for. A prompt's last token is taken back here (`heal`). Only two others know of it: the sampler draws the first token
# from those that begin with its text, and the outbox leaves this text out.


def build_request(
    request: CompletionRequest, adapters: Adapters, tools: EngineParts, default_max_tokens: int
) -> ActiveRequest:
    """Makes a request that can be queued. May be called from any thread. Raises `InvalidRequestError`."""
    backend, n = tools.backend, len(request.branches)
    has_suffix, request = request.suffix is not None, resolve(request, backend.tokenizer.special, backend)
    kind = strategy_of(request, backend, default_max_tokens)
    report = report_of(request, backend)
    if request.resumed and request.resumed[0].fingerprint == backend.fingerprint != "" and not kind.restarts:
        report, request = Replay(report, request.resumed), begun_anew(request)
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
            for group in groups(begun, restarts=kind.restarts):
                prompt = Prompt(active, tokens, group, stops, lora, repeated, restarts=kind.restarts)
                if request.scores_prompt:
                    prompt.scores = Scores(prompt.packed, request.logprobs or 0)
                active.prompts.append(prompt)
    give_tokens(active)
    add_constraints(ConstraintSetup(active, backend, asked, resumed, stops))
    for prompt in active.prompts:
        prompt.strategy = kind(prompt, tools)
    for prompt in active.negatives:
        prompt.strategy = NegativeStrategy(prompt, tools)
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


class Facade:
    """What other threads may ask an engine: about its model, tokens of texts, and whether a request can ever run."""

    def __init__(self, backend: Backend, default_max_tokens: int) -> None:
        self.adapters = Adapters(backend.adapters)
        """The adapters that were loaded with the model. May be read, and given other scales, from any thread."""
        self._backend = backend
        self._intake = RequestLimits(
            backend.tokenizer, backend.n_cells, backend.n_parallel if backend.block_size else 1
        )
        self._default_max_tokens = default_max_tokens

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's vocabulary."""
        return self._backend.tokenizer

    @property
    def n_cells(self) -> int:
        """The longest context of one request, in KV positions."""
        return self._backend.n_cells

    @property
    def fingerprint(self) -> str:
        """A hash of all that an answer depends on but its request; see `Backend.fingerprint`."""
        return self._backend.fingerprint

    @property
    def identity(self) -> str:
        """Names the model, how its cache is laid out, and its build; see `Backend.identity`."""
        return self._backend.identity

    @property
    def model_info(self) -> ModelInfo:
        """What the model's file says about the model."""
        return self._backend.model_info

    @property
    def embedder(self) -> Embedder | None:
        """Makes embeddings; None: they aren't wanted."""
        return self._backend.embedder

    @property
    def media(self) -> MediaReader | None:
        """Turns images and sounds into parts of prompts; None: the model takes neither."""
        return self._backend.media

    @property
    def chat_template(self) -> ChatTemplate | None:
        """The model's chat template, if it has one."""
        return self._backend.chat_template

    def tokenize(self, text: str, *, is_prompt: bool = True, any_length: bool = False) -> tuple[int, ...]:
        """The tokens of a text; see `RequestLimits.tokenize`."""
        return self._intake.tokenize(text, is_prompt=is_prompt, any_length=any_length)

    def tokenize_parts(self, parts: Sequence[PromptPart]) -> tuple[tuple[int, ...], tuple[Media, ...]]:
        """The prompt and the `media` of a request, from texts and files; see `RequestLimits.tokenize_parts`."""
        return self._intake.tokenize_parts(parts, self.media)

    def check(self, request: CompletionRequest) -> None:
        """Raises `InvalidRequestError` if a request can never run; see `RequestLimits.check` and `check_supported`."""
        request = resolve(request, self.tokenizer.special, self._backend)
        self._intake.check(request)
        check_supported(request, self._backend, self._default_max_tokens)
        for params in request.branches:
            self.adapters.lora(params.lora)

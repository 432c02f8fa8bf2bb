"""Refuses texts and requests that this model, with these options, could never run, as soon as they arrive.

The text between a prompt and a suffix is written by a model with infill tokens, which reads both. For other models the
request keeps its suffix, and `srb.engine.decoding.bridge` samples candidates and scores the suffix after each.

`check_supported` asks the backend; `RequestLimits` needs only the vocabulary and the size of the context.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace

from srb.engine.backend import Backend
from srb.engine.decoding.context_shift import LEAST_CELLS, may_shift
from srb.engine.media import Media, MediaReader, PromptPart, no_media, placed, words
from srb.engine.model import SpecialTokens, Tokenizer
from srb.engine.request import MAX_PROMPT_LOGPROBS, CompletionRequest
from srb.engine.sampling_params import SamplingParams
from srb.errors import ContextSizeError, InvalidRequestError, context_of, larger_context


def resolve(request: CompletionRequest, special: SpecialTokens, backend: Backend | None = None) -> CompletionRequest:
    """Return the request as it runs on a model: with its suffix in the prompts, or with a number of candidates.

    backend: where it runs; None: not known yet.
    """
    asks_for_bridge = request.n_candidates is not None or request.stop_at_suffix
    if request.suffix is not None and not asks_for_bridge:
        request = _placed(request, special)
    if backend and request.suffix is not None and request.n_candidates is None:
        spare = n_rows_here(request, backend) - request.n_rows
        most = max(len(request.branches), min(request.n_rows, most_rows(backend) - spare))
        request = replace(request, n_candidates=most)
    return request


def n_rows_here(request: CompletionRequest, backend: Backend) -> int:
    """Return `CompletionRequest.n_rows`, plus 1 for a suffix on a model with a sliding window or a recurrent state.

    Such a model can't remove tokens from its cells, so it scores the suffix in a fork.
    """
    return request.n_rows + (request.suffix is not None and backend.window is not None)


def most_rows(backend: Backend) -> int:
    """Return how many rows one prompt may have."""
    return min(backend.n_parallel, backend.n_seqs - 1)  # the prompt takes a seq_id, too


def _placed(request: CompletionRequest, special: SpecialTokens) -> CompletionRequest:
    """Return the request with its suffix in the prompts, or unchanged if the model has no tokens for infill."""
    suffix = request.suffix_ids
    prompts = []
    for tokens in request.token_ids:
        head = tokens[:1] if tokens[0] == special.bos else ()
        made = special.gap(tokens[len(head) :], suffix)
        if made is None:
            return request
        prompts.append(head + made)
    return replace(request, prompts=tuple(prompts), suffix=None)


def check_supported(request: CompletionRequest, backend: Backend, default_max_tokens: int) -> None:
    """Raise `InvalidRequestError` if the backend can't do what a request asks. May be called from any thread."""
    n_rows, most = n_rows_here(request, backend), most_rows(backend)
    if n_rows > most:
        rows = "beams" if request.suffix is None else "candidates"
        spare = ", and one more row to score the suffix," if n_rows > request.n_rows else ""
        raise InvalidRequestError(
            f"{request.n_rows} {rows}{spare} exceed the {most} sequences that can run at once; ask for fewer {rows}, "
            "or start with a larger --parallel",
            param=rows,
        )
    _check_spare(request, backend)
    if request.guided and backend.n_parallel < 2:
        raise _not_here(
            "guidance_scale",
            "guidance_scale needs two sequences for each alternative, and there is one; leave it out, or start with "
            "a larger --parallel",
        )
    if not (backend.can_unify or backend.block_size):
        _check_unified(request)
    if may_shift(request, backend.n_cells, default_max_tokens):
        _check_shift(request, backend)
    if request.explore and backend.window is not None:
        memory = "a sliding window" if backend.window else "a recurrent state"
        raise _not_here(
            "explore",
            f"explore needs a model that can go back to any token, but this one has {memory}; leave it out",
        )


def _check_spare(request: CompletionRequest, backend: Backend) -> None:
    """Refuse a bridge that only fits without the row that scores the suffix."""
    n_rows = n_rows_here(request, backend)
    resumed = (1 + len(each.tokens) for each in request.resumed if each.finished is None)
    wanted = max(request.branches[0].max_tokens or 0, *resumed, 0)
    cells = max(map(len, request.prompts)) + n_rows * (max(0, wanted - 1) + request.cells_after)
    if n_rows > request.n_rows and cells > backend.n_cells:
        raise InvalidRequestError(
            f"a bridge of {request.n_rows} candidates needs {cells} cells on this model, which scores the suffix in "
            f"cells of their own; the context has {backend.n_cells}; ask for fewer candidates or tokens, or start with "
            "a larger --ctx-size",
            param="max_tokens",
            code="context_length_exceeded",
        )


def _check_shift(request: CompletionRequest, backend: Backend) -> None:
    reason, most = None, min(backend.n_parallel, backend.n_cells // LEAST_CELLS)
    if not backend.can_shift:
        reason = (
            "the positions of this model's cells can't change, or not with --reproducible or this --cache-type-k "
            "(a server with --context-shift takes another one than srb tune chose, if it must); leave it out"
        )
    elif request.count > most:
        reason = f"{request.count} alternatives are more than the {most} that can run at once; ask for fewer"
    if reason:
        message = f"context_shift isn't possible here: {reason}, or start with a larger --ctx-size"
        raise _not_here("context_shift", message)


def _check_unified(request: CompletionRequest) -> None:
    asked = {"search": request.search == "beam", "suffix": request.suffix is not None, "explore": request.explore}
    for param, is_asked in asked.items():
        if is_asked:
            raise _not_here(param, f"{param} needs a unified KV cache; start the server without --kv-layout streams")


def _not_here(param: str, message: str) -> InvalidRequestError:
    return InvalidRequestError(message, param=param, code="unsupported_parameter")


def _asked(request: CompletionRequest, params: SamplingParams) -> str:
    """Describe the tokens that a request may generate."""
    asked = f"{params.max_tokens or 0} new tokens"
    asked += f" for each of {request.n_rows} beams or candidates" if request.n_rows else ""
    return asked + (f", with {request.cells_after} more after each" if request.cells_after else "")


class RequestLimits:
    """Refuses requests that could never run. May be used from any thread.

    Args:
        n_cells: the most cells that a request may need: for its prompt, and the tokens of one alternative or of all
            beams or candidates.
        n_texts: how many alternatives `--ctx-size` is divided among, with `n_cells` each (`Backend.block_size`); 1: it
            isn't divided.
    """

    def __init__(self, tokenizer: Tokenizer, n_cells: int, n_texts: int = 1) -> None:
        self._tokenizer = tokenizer
        self._n_cells = n_cells
        self._n_texts = n_texts

    def tokenize(self, text: str, *, is_prompt: bool = True, any_length: bool = False) -> tuple[int, ...]:
        """Return the tokens of a text; special tokens in it are parsed. A prompt gets BOS if the model wants it.

        Raises:
            InvalidRequestError: the text is empty and gets no BOS, isn't valid Unicode, or has more bytes than any text
                that fits the context.
        """
        if not isinstance(text, str):
            raise InvalidRequestError(f"tokenize takes a text, got {text!r:.60}", param="prompt")
        if not text:
            if tokens := self._tokenizer.tokenize("") if is_prompt else ():  # BOS alone is a prompt
                return tokens
            raise InvalidRequestError("prompt must not be empty: this model adds no BOS token", param="prompt")
        try:
            n_bytes = len(text.encode())
        except UnicodeEncodeError as error:
            raise InvalidRequestError(
                f"prompt is not valid Unicode: half a surrogate pair at character {error.start}",
                param="prompt",
            ) from None
        n_cells = self._n_cells
        if not any_length and n_bytes > n_cells and (least := n_bytes // self._tokenizer.longest_piece) > n_cells:
            # Tokenizing megabytes would take seconds.
            raise ContextSizeError(least, n_cells, exact=False, n_texts=self._n_texts)
        return self._tokenizer.tokenize(text, is_prompt=is_prompt)

    def tokenize_parts(
        self, parts: Sequence[PromptPart], reader: MediaReader | None
    ) -> tuple[tuple[int, ...], tuple[Media, ...]]:
        """Return the tokens of a prompt that has texts and files, and the media that its placeholders stand for.

        Raises:
            InvalidRequestError: a file can't be read, `tokenize` refuses a text, or the files don't fit the context.
        """
        if reader is None:
            raise no_media()
        tokens = list(self._tokenizer.tokenize(""))  # only BOS, if the model wants it
        media: list[Media] = []
        for part in parts:
            if isinstance(part, str):
                tokens += self.tokenize(part, is_prompt=False) if part else ()
                continue
            for each in reader.read(part):
                if isinstance(each, Media):
                    media.append(each)
                    tokens += each.tokens
                else:
                    tokens.append(each)
            if len(tokens) > self._n_cells:  # the next files aren't read
                raise ContextSizeError(len(tokens), self._n_cells, exact=False, n_texts=self._n_texts)
        return tuple(tokens), tuple({each.tokens[0]: each for each in media}.values())

    def check(self, request: CompletionRequest) -> None:
        """Raise `InvalidRequestError` if a request can never run. Grammars are checked when they are compiled."""
        for tokens in request.token_ids:
            if request.media:
                placed(tokens, request.media)
                if tokens[-1] < 0:
                    raise InvalidRequestError(
                        "a prompt can't end with an image or a sound; add a text after it", param="prompt"
                    )
                tokens = words(tokens)
            self._check_tokens("prompt", tokens)
        self._check_tokens("suffix", request.scored_suffix)
        for resumed in request.resumed:
            self._check_tokens("resumed", resumed.tokens)
        for number, candidate in enumerate(request.candidates):
            name = f"candidates[{number}]"
            self._check_tokens(name, candidate)
            if any(map(self._tokenizer.is_end, candidate[:-1])):
                message = f"{name} goes on after an end token; score what follows as a candidate of its own"
                raise InvalidRequestError(message, param=name)
        for params in request.branches:
            self._check_tokens("logit_bias", [token for token, _ in params.logit_bias])
            self._check_tokens("stop_token_ids", params.stop_token_ids)
            for each in params.avoid or ():
                if not isinstance(each, str):
                    self._check_tokens("avoid", each)
            self._check_tokens("negative_prompt", params.negative_ids)
            self._check_tokens("direction", params.direction_ids)
        self._check_room(request)
        if request.prompt_logprobs is not None:
            entries = request.prompt_tokens * (request.prompt_logprobs + 1)
            if entries > MAX_PROMPT_LOGPROBS:
                raise InvalidRequestError(
                    f"prompt_logprobs of {request.prompt_logprobs} for {request.prompt_tokens} prompt tokens makes "
                    f"{entries} log-probabilities; the limit is {MAX_PROMPT_LOGPROBS}; ask for fewer, or for fewer or "
                    "shorter prompts",
                    param="prompt_logprobs",
                )

    def _check_tokens(self, param: str, tokens: Collection[int]) -> None:
        n_vocab = self._tokenizer.n_vocab
        if tokens and not (min(tokens) >= 0 and max(tokens) < n_vocab):
            bad = next(token for token in tokens if not 0 <= token < n_vocab)
            raise InvalidRequestError(
                f"{param} has the token id {bad!s:.60}; the model's ids go from 0 to {n_vocab - 1}", param=param
            )

    def _check_room(self, request: CompletionRequest) -> None:
        if request.context_shift:
            return
        longest = request.longest_prompt
        if longest > self._n_cells:
            raise ContextSizeError(longest, self._n_cells, n_texts=self._n_texts)
        for index, resumed in enumerate(request.resumed):
            params = request.branches[index % len(request.branches)]
            n_texts = 2 if params.is_guided else 1
            negative = len(params.negative_ids or (0,)) if params.is_guided else 0
            n_prompt = len(request.prompts[index // len(request.branches)]) + len(params.direction_ids)
            n_tokens = n_prompt + negative + n_texts * len(resumed.tokens)
            # A context of another size may have had room for it. A search begins anew with the prompt.
            if request.n_rows:
                n_texts = 1 if self._n_texts > 1 else request.n_rows
                n_tokens = n_prompt
                n_tokens += n_texts * (len(resumed.tokens) + request.cells_after) if request.suffix is not None else 0
            if resumed.finished is None and n_tokens > self._n_cells:
                raise ContextSizeError(n_tokens, self._n_cells, n_texts=self._n_texts)
        for params in request.branches:
            # The last token is never evaluated, so it takes no cell.
            is_divided = self._n_texts > 1
            of_row = max(0, (params.max_tokens or 0) - 1) + request.cells_after
            generated = of_row * (1 if is_divided else request.n_rows or 1)
            cells, what = longest + generated, f"prompt_tokens = {longest} and {_asked(request, params)}"
            if params.is_guided:
                negative = len(params.negative_ids or (0,))
                cells = max(cells, negative + generated) if is_divided else cells + negative + generated
                what += f", and the same after {negative} tokens of the negative prompt,"
            if cells > self._n_cells:
                fewer = "fewer tokens, beams or candidates" if request.n_rows else "fewer tokens"
                raise InvalidRequestError(
                    f"max_tokens is too high: {what} are more than {context_of(self._n_cells, self._n_texts)}; "
                    f"ask for {fewer}, or {larger_context(cells, self._n_texts)}",
                    param="max_tokens",
                    code="context_length_exceeded",
                )

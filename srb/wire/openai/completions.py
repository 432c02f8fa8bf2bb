"""`POST /v1/completions` and `POST /v1/chat/completions`, with answers in native events or OpenAI's formats.

Pure functions.
"""

from dataclasses import replace
from functools import partial

from srb.wire.openai.chat import ChatCompletion
from srb.wire.openai.reply import Completion
from srb.wire.reply.reply import Reply
from srb.wire.request.body import parse
from srb.wire.serving import Serving


def read(body: bytes, serving: Serving, *, chat: bool = False, openai: bool = False) -> Reply:
    """Continue a prompt, in n alternatives: native events, OpenAI's chunks, or OpenAI's object.

    openai: a body that doesn't name a format gets OpenAI's.
    """
    limits = replace(serving.limits, openai=openai or serving.limits.openai)
    parsed = parse(
        body,
        limits,
        serving.engine.tokenize,
        serving.vocabulary.template,
        chat=chat,
        path_to=serving.path_to,
        texts_of=serving.texts_of,
        take=serving.take,
    )
    completion, created = serving.made or parsed.completion, int(serving.now)
    if parsed.format == "events":
        return Reply(completion, parsed.ignored, True, None, parsed.blame, parsed.detach, parsed.story, parsed.node)
    stream = parsed.format == "chunks"

    make = partial(
        partial(ChatCompletion, calls=parsed.calls) if chat else Completion,
        completion.id,
        model=limits.model,
        created=created,
        fingerprint=serving.fingerprint,
        per_prompt=len(completion.branches),
        n=parsed.n,
        logprobs=parsed.logprobs,
        usage=parsed.usage,
        times=parsed.times,
    )

    return Reply(completion, parsed.ignored, stream, make, parsed.blame, parsed.detach, parsed.story, parsed.node)

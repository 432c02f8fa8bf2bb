"""Ollama's `/api/generate` and `/api/chat`: parses bodies, and builds responses; and the routes that list models."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from pydantic import Field

from srb.engine.events import DoneEvent, ErrorEvent, Event, Token
from srb.errors import InvalidRequestError, SrbError
from srb.wire.answer import Answer, Change, Item, Response
from srb.wire.context import RequestContext
from srb.wire.embeddings import EmbeddingFormat, EmbeddingRequest, Vectors
from srb.wire.openai.completions import content_of
from srb.wire.reasoning import reasoning_format
from srb.wire.reply import LINES, Reply, parse_one
from srb.wire.request.fields import SamplingFields
from srb.wire.request.media import with_images
from srb.wire.request.messages import Message
from srb.wire.request.read import Int, ModelFields, show
from srb.wire.tools.definitions import ToolList

VERSION = "0.13.0"
"""The version of Ollama's API that srb has. Clients decide by it what they send."""

NEVER = "9999-12-31T23:59:59Z"
"""When the model will be unloaded."""


class OllamaOptions(SamplingFields):
    """The `options` of a body."""

    own_names = frozenset({"num_predict"})


class OllamaFields(ModelFields):
    """The fields that the bodies of `/api/generate` and `/api/chat` have in common."""

    own_names = OllamaOptions.own_names

    stream: bool = Field(True, description="true: one line of JSON for each piece of text. false: one object.")
    options: OllamaOptions | None = Field(None, description="sampling parameters; num_predict is max_tokens.")
    format: Any = Field(None, description='"json", or a JSON schema that the text must match.')
    detach: bool | None = Field(None, description="the request goes on when its connection is closed.")
    think: bool | str | None = Field(
        None,
        description="the variable `enable_thinking` of the chat template. Thoughts are `thinking`, next to the text; "
        "with false, a model that thinks anyway has them in the text.",
    )
    logprobs: bool | None = Field(None, description="report each token with its log-probability.")
    top_logprobs: Int | None = Field(None, description="report this many top tokens at each position.")


class OllamaGenerateFields(OllamaFields):
    """The body of `POST /api/generate`."""

    prompt: str = Field("", description="a user's message, or with `raw` a text to continue.")
    system: str | None = Field(None, description="a system message.")
    raw: bool = Field(False, description="take the prompt as it is, without the chat template.")
    suffix: str | None = Field(
        None, description="the text that comes after the answer. Then the prompt is taken as it is."
    )
    images: list[str] | None = Field(None, description="images before the prompt, in base64.")


class OllamaChatFields(OllamaFields):
    """The body of `POST /api/chat`."""

    messages: list[Message] | None = Field(None, description="the conversation.")
    tools: ToolList | None = Field(None, description="functions that the model may call.")


class OllamaShowFields(ModelFields):
    """The body of `POST /api/show`."""


def parse_generate(fields: OllamaGenerateFields, context: RequestContext) -> Reply:
    """Answer a prompt, as in Ollama: lines, or an object."""
    if fields.raw or fields.suffix:
        if fields.images:
            raise InvalidRequestError("images go with a chat template; leave raw out", param="images")
        prompt: dict[str, Any] = {"prompt": fields.prompt}
    else:
        system = [{"role": "system", "content": fields.system}] if fields.system else []
        content = with_images(fields.prompt, fields.images, "images")
        prompt = {"messages": [*system, {"role": "user", "content": content}]}
    return _reply(fields, context, _response, bool(fields.prompt), suffix=fields.suffix, **prompt)


def parse_chat(fields: OllamaChatFields, context: RequestContext) -> Reply:
    """Continue a conversation, as in Ollama: lines, or an object."""
    for k, message in enumerate(fields.messages or ()):
        images = (message.model_extra or {}).pop("images", None)
        message.content = with_images(message.content, images, f"messages[{k}].images")
        thoughts = (message.model_extra or {}).get("thinking")
        if message.model_extra is not None and isinstance(thoughts, str):
            message.model_extra.setdefault("reasoning_content", thoughts)
    _number_calls(fields.messages or [])
    return _reply(fields, context, _message, bool(fields.messages), messages=fields.messages, tools=fields.tools)


def _response(text: str, thoughts: str) -> dict[str, Any]:
    return {"response": text} | ({"thinking": thoughts} if thoughts else {})


def _message(text: str, thoughts: str) -> dict[str, Any]:
    message = {"role": "assistant", "content": text} | ({"thinking": thoughts} if thoughts else {})
    return {"message": message}


def _number_calls(messages: list[Message]) -> None:
    """Gives ids to calls and to their results, in order. Ollama's clients send none, but some templates need them."""
    n, unanswered = 0, list[str]()
    for message in messages:
        for call in message.tool_calls or ():
            n += 1
            assert call.model_extra is not None
            unanswered.append(str(call.model_extra.setdefault("id", f"{n:09}")))
        if message.role == "tool" and unanswered:
            assert message.model_extra is not None
            message.model_extra.setdefault("tool_call_id", unanswered.pop(0))


def _reply(
    fields: OllamaFields,
    context: RequestContext,
    content: Callable[[str, str], dict[str, Any]],
    has_input: bool,
    **given: Any,
) -> Reply:
    """Makes the reply. `content` returns the fields of an object that have the text and the thoughts."""
    form = Lines({"model": context.limits.model, "created_at": time_of(context.now)}, content)
    if not has_input:  # clients load a model with an empty request, and unload it with keep_alive 0
        unloads = re.fullmatch(r"0+(\.0*)?[a-zµ]*", str((fields.model_extra or {}).get("keep_alive")))
        return Reply(None, [], False, partial(Response, replace(form, reason="unload" if unloads else "load")))
    options = fields.options
    if options and options.max_tokens == -2:  # in Ollama: until the context is full
        options.max_tokens = -1
    parsed = parse_one(
        fields,
        options,
        context,
        **given,
        json_schema=_schema(fields.format) if fields.format else None,
        chat_template_kwargs=None if fields.think is None else {"enable_thinking": bool(fields.think)},
        reasoning_format="none" if fields.think is False and "messages" in given else None,
        stream=fields.stream,
        detach=fields.detach,
        logprobs=bool(fields.logprobs),
        top_logprobs=fields.top_logprobs if fields.logprobs else None,
        model=fields.model,
    )
    parsed.ignored.extend(f"options.{name}" for name in (options and options.model_extra) or ())
    make = partial(Response, form, parsed.completion.id, parsed.reader)
    return Reply.of(parsed, make, frame=replace(LINES, ping=form.ping()))


def _schema(form: Any) -> dict[str, Any]:
    if form == "json":
        return {"type": "object"}
    if not isinstance(form, dict):
        raise InvalidRequestError(f'format is "json" or a JSON schema, got {show(form)}', param="format")
    return form


@dataclass(frozen=True)
class Lines:
    """Ollama's object and lines.

    Attributes:
        head: The fields that every object begins with.
        content: Returns the fields that have a text and thoughts.
        reason: Why a request without input has ended.
    """

    head: dict[str, Any]
    content: Callable[[str, str], dict[str, Any]]
    reason: str = "load"

    def _line(
        self, text: str = "", thoughts: str = "", calls: Iterable[Item] = (), tokens: Sequence[Token] = ()
    ) -> dict[str, Any]:
        line = self.head | self.content(text, thoughts)
        if shown := [_call(item) for item in calls if item.arguments is not None]:
            line["message"]["tool_calls"] = shown
        return line | {"done": False} | ({"logprobs": content_of(tokens)} if tokens else {})

    def ping(self) -> bytes:
        """The line that is sent while no other comes."""
        return json.dumps(self._line()).encode() + b"\n"

    def chunk(self, answer: Answer, event: Event, changes: list[Change]) -> Iterator[dict[str, Any]]:
        """The lines for an event. A call gets its line when it is complete."""
        for change in changes:
            item, text, tokens = change.item, change.text, change.tokens
            if item.kind == "call" and change.kind == "end" and item.arguments is not None:
                yield self._line(calls=[item])
            elif item.kind != "call" and (text or tokens):
                yield self._line(*((text, "") if item.kind == "text" else ("", text)), tokens=tokens)
        if isinstance(event, ErrorEvent):
            yield error_json(event.error)
        elif isinstance(event, DoneEvent):
            yield self._last(self._line(), answer)

    def body(self, answer: Answer) -> dict[str, Any]:
        """The object; without events, that the model is loaded, or unloaded."""
        if not answer.done:
            return self._line() | {"done": True, "done_reason": self.reason}
        alternative = answer[0]
        tokens = [token for item in alternative.items for token in item.tokens]
        text, thoughts = alternative.all_of("text"), alternative.all_of("reasoning")
        line = self._line(text, thoughts, alternative.calls, tokens)
        logprobs = {name: line.pop(name) for name in ("logprobs",) if name in line}
        return self._last(line, answer) | logprobs

    def _last(self, line: dict[str, Any], answer: Answer) -> dict[str, Any]:
        """The last object, with the reason why the answer ended, and times in nanoseconds."""
        stop = answer[0].stop
        assert stop
        assert answer.done
        timings, usage = answer.done.timings, answer.done.usage
        prompt, predicted = round(timings.prompt_ms * 1e6), round(timings.predicted_ms * 1e6)
        return line | {
            "done": True,
            "done_reason": stop.finish_reason,
            "total_duration": round(timings.queued_ms * 1e6) + prompt + predicted,
            "load_duration": 0,
            "prompt_eval_count": usage.prompt_tokens,
            "prompt_eval_duration": prompt,
            "eval_count": usage.completion_tokens,
            "eval_duration": predicted,
        }


def _call(item: Item) -> dict[str, Any]:
    """A complete call, in Ollama's notation."""
    return {"id": item.id, "function": {"name": item.name, "arguments": item.arguments}}


def error_json(error: SrbError) -> dict[str, Any]:
    """The body of an error."""
    return {"error": error.message}


def time_of(seconds: float) -> str:
    """A time in the notation of Ollama. seconds: since 1970."""
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


_FILE_TYPES = (
    "F32 F16 Q4_0 Q4_1 - - - Q8_0 Q5_0 Q5_1 Q2_K Q3_K_S Q3_K_M Q3_K_L Q4_K_S Q4_K_M Q5_K_S Q5_K_M Q6_K IQ2_XXS IQ2_XS "
    "Q2_K_S IQ3_XS IQ3_XXS IQ1_S IQ4_NL IQ3_S IQ3_M IQ2_S IQ2_M IQ4_XS IQ1_M BF16 - - - TQ1_0 TQ2_0 MXFP4"
)
"""The names of `general.file_type`, llama.cpp's `llama_ftype`, from 0 on."""


def _details(context: RequestContext) -> dict[str, Any]:
    """How the model was made."""
    info = context.engine.model.info
    n_params = info.n_params
    file_type = info.metadata.get("general.file_type")
    return {
        "parent_model": "",
        "format": "gguf",
        "family": info.architecture,
        "families": [info.architecture],
        "parameter_size": f"{n_params / 1e9:.1f}B" if n_params >= 1e9 else f"{n_params / 1e6:.2f}M",
        "quantization_level": {str(k): name for k, name in enumerate(_FILE_TYPES.split())}.get(
            str(file_type), "unknown"
        ),
    }


def _times(context: RequestContext) -> dict[str, str]:
    return {"modified_at": time_of(int(context.created))}


def _models(context: RequestContext, **more: Any) -> dict[str, Any]:
    name, info = context.limits.model, context.engine.model.info
    model = {"name": name, "model": name, **_times(context), "size": info.n_bytes, "digest": info.digest}
    return {"models": [model | {"details": _details(context)} | more]}


def tags(_fields: None, context: RequestContext) -> dict[str, Any]:
    """List the server's one model, as in Ollama."""
    _ = context.engine.model  # raises an error until the model is loaded
    return _models(context)


def ps(_fields: None, context: RequestContext) -> dict[str, Any]:
    """List the loaded model, as in Ollama."""
    model = context.engine.model
    return _models(context, expires_at=NEVER, context_length=model.n_cells, size_vram=model.info.n_bytes_gpu)


def version(_fields: None, _context: RequestContext) -> dict[str, Any]:
    """Show the version of Ollama's API that srb has."""
    return {"version": VERSION}


def show_model(_fields: OllamaShowFields, context: RequestContext) -> dict[str, Any]:
    """Show the model, as in Ollama."""
    model = context.engine.model
    info, template = model.info, model.chat_template
    # Ollama leaves long lists out, too.
    metadata = {name: value for name, value in info.metadata.items() if not isinstance(value, list)}
    return {
        "modelfile": "",
        "parameters": "",
        "template": template.source if template else "",
        "details": _details(context),
        "model_info": metadata
        | {
            "general.architecture": info.architecture,
            "general.basename": context.limits.model,
            "general.parameter_count": info.n_params,
            # Clients look for a name that ends with `.context_length`. This server's is meant, not the model's.
            f"{info.architecture}.context_length": model.n_cells,
            "general.context_length": model.n_cells,
        },
        "capabilities": _capabilities(context),
        **_times(context),
    }


def _capabilities(context: RequestContext) -> list[str]:
    """What the model can do, in Ollama's words. Tools work with every chat template."""
    model = context.engine.model
    template = model.chat_template
    can = {
        "completion": True,
        "embedding": model.embedder,
        "tools": template,
        "insert": model.tokenizer.special.gap((), ()),
        "vision": "image" in model.media_kinds,
        "audio": "audio" in model.media_kinds,
        "thinking": template and ("enable_thinking" in template.source or reasoning_format(template)),
    }
    return [name for name, value in can.items() if value]


def _embed(request: EmbeddingRequest, vectors: Vectors, model: str) -> Any:
    n_tokens = sum(map(len, request.texts))
    return {"model": model, "embeddings": [vector for vector, *_ in vectors], "prompt_eval_count": n_tokens}


EMBED = EmbeddingFormat(_embed, truncates=True)
EMBED_ONE = EmbeddingFormat(
    lambda _request, vectors, _model: {"embedding": vectors[0][0] if vectors else []}, name="prompt", truncates=True
)
"""The formats of `/api/embed` and `/api/embeddings`."""

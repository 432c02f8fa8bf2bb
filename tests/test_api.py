"""`srb.generate` and `srb.score`, what the library takes in place of tokens and paths, and wrong types."""

import contextlib
import copy
import dataclasses
import io
import pickle
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_backend import END, N_VOCAB, ByteTokenizer, FakeBackend, babble, score
from rich.console import Console

import srb
from srb import (
    LLM,
    AsyncEngine,
    CompletionOutput,
    CompletionOutputs,
    CompletionRequest,
    Engine,
    Explore,
    SamplingParams,
    Settings,
    StreamEvent,
    api,
)
from srb.errors import InvalidRequestError, NotSupportedError, SettingsError, SrbError

Loaded = list[tuple[Settings, FakeBackend]]


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> Iterator[Loaded]:
    """The models that were loaded, which are fake ones."""
    loaded: Loaded = []

    def load(settings: Settings) -> FakeBackend:
        loaded.append((settings, FakeBackend(n_cells=4096, script=babble)))
        return loaded[-1][1]

    api.loaded_model.close()
    monkeypatch.setattr("srb.llama.backend.LlamaBackend", load)
    monkeypatch.setattr("srb.llama.model.metadata.sampling_of", lambda _settings: {})
    yield loaded
    api.loaded_model.close()


def test_one_call_gives_the_texts_and_the_model_stays_loaded(loaded: Loaded) -> None:
    texts = srb.generate("Once", n=3, max_tokens=5, seed=1)
    assert len({*texts}) == 3
    assert srb.generate("Once", n=3, max_tokens=5, seed=1) == texts
    by_tokens = srb.generate(tuple(b"Once"), 1, max_tokens=5, seed=1)
    assert by_tokens == [text_of(Engine(FakeBackend(n_cells=4096, script=babble)), "Once", max_tokens=5)]
    assert len(srb.generate("Once", max_tokens=1)) == 8
    (scored,) = srb.score("Once", [" upon"])
    assert scored.tokens == tuple(b" upon")
    assert len(loaded) == 1


def test_another_model_takes_the_place_of_the_one_before(loaded: Loaded) -> None:
    srb.generate("Once", 1, max_tokens=1)
    srb.generate("Once", 1, max_tokens=1, model="a.gguf")
    srb.generate("Once", 1, max_tokens=1, model=Path("a.gguf"))
    srb.generate("Once", 1, max_tokens=1, model=Settings(model=Path("a.gguf")))
    srb.generate("Once", 1, model=Settings(model=Path("a.gguf"), max_tokens=2))
    assert [settings.model for settings, _ in loaded] == [None, Path("a.gguf"), Path("a.gguf")]
    assert [backend.closed for _, backend in loaded] == [True, True, False]


def test_an_interrupted_call_leaves_no_work(loaded: Loaded) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    srb.generate("Once", 1, max_tokens=1)
    loaded[0][1].on_decode = interrupt
    with pytest.raises(KeyboardInterrupt):
        srb.generate("Once", 2, max_tokens=5)
    assert len(srb.generate("Once", 2, max_tokens=5)) == 2


def test_many_texts_are_counted_while_they_are_made(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[io.StringIO] = []

    def console() -> Console:
        shown.append(io.StringIO())
        return Console(file=shown[-1], force_terminal=True, width=100)

    monkeypatch.setattr("srb.files.download.error_console", console)
    srb.generate("Once", n=70, max_tokens=2)
    srb.score("Once", [" upon", " more"])
    for out, (what, count) in zip(shown, (("writing", "70/70"), ("scoring", "2/2")), strict=True):
        assert what in out.getvalue()
        assert count in out.getvalue()


def test_nothing_is_shown_where_nobody_looks(loaded: Loaded, capsys: pytest.CaptureFixture[str]) -> None:
    srb.generate("Once", n=40, max_tokens=2)
    assert capsys.readouterr() == ("", "")


def test_texts_have_their_tokens_and_how_they_ended(loaded: Loaded) -> None:
    asked: dict[str, Any] = {"n": 3, "max_tokens": 40, "seed": 5}
    texts = srb.generate("Once", **asked, stop="e")
    assert [text.alternative for text in texts] == [0, 1, 2]
    assert [text.seed for text in texts] == [5, 6, 7]
    assert {text.prompt for text in texts} == {"Once"}
    assert {text.finish_reason for text in texts} >= {"stop"}
    for text in texts:
        ended = "e" if text.stop_reason == "e" else ""
        shown = bytes(token for token in text.token_ids if token != END).decode(errors="replace")
        assert shown.rstrip("\ufffd") == (text + ended).rstrip("\ufffd")
        assert (text.stop_reason is None) == (text.finish_reason == "length" or text.token_ids[-1] == END)
        assert (text.logprobs, text.top_logprobs, text.mean_logprob, text.cumulative_logprob) == (None,) * 4
    assert not {*CompletionOutput.__annotations__} & {*dir(str)}
    assert repr(texts) == repr([*map(str, texts)])


def test_each_text_follows_its_own_direction(loaded: Loaded) -> None:
    plain = srb.generate("Once", 2, max_tokens=5, seed=5)
    texts = srb.generate("Once", directions=["", "she lies"], max_tokens=5, seed=5)
    assert texts[0] == plain[0]
    assert texts[1] != plain[1]
    assert [row["direction"] for row in texts.rows()] == ["", "she lies"]
    for wrong, message in (
        ({"n": 3, "directions": ["a"]}, "n is 3"),
        ({"directions": "slower"}, "a list of texts"),
        ({"directions": 5}, "a list of texts, got 5"),
        ({"directions": [5]}, "takes texts, got 5"),
    ):
        with pytest.raises(InvalidRequestError, match=message):
            srb.generate("Once", **wrong)


def test_texts_have_their_log_probabilities(loaded: Loaded) -> None:
    (plain,) = srb.generate("Once", 1, max_tokens=5, seed=5)
    (text,) = srb.generate("Once", 1, max_tokens=5, seed=5, logprobs=2)
    assert (text, text.token_ids) == (plain, plain.token_ids)
    ids = tuple(b"Once")
    expected = [score((*ids, *text.token_ids[:k]), token) for k, token in enumerate(text.token_ids)]
    assert text.logprobs == pytest.approx(expected)
    assert text.cumulative_logprob == pytest.approx(sum(expected))
    assert text.mean_logprob == pytest.approx(sum(expected) / 5)
    assert text.top_logprobs
    for k, top in enumerate(text.top_logprobs):
        likeliest = sorted((score((*ids, *text.token_ids[:k]), token) for token in range(N_VOCAB)), reverse=True)[:2]
        assert [*top.values()] == pytest.approx(likeliest)


def test_a_list_of_prompts_runs_together_and_gives_the_texts_of_each(
    loaded: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = [f"{chr(65 + k % 26)}{k} begins" for k in range(9)]
    asked: dict[str, Any] = {"n": 2, "max_tokens": 6, "seed": 3}
    alone = [srb.generate(prompt, **asked) for prompt in prompts]
    api.loaded_model.close()  # and its cached prompts
    monkeypatch.setattr("srb.llm.REQUESTS_AT_ONCE", 4)
    together = srb.generate(prompts, **asked)
    assert together == alone
    fake = loaded[-1][1]
    assert fake.rows <= sum(map(len, prompts)) + 2 * 5 * len(prompts)  # each prompt once
    assert fake.decodes < 6 * len(prompts)  # several prompts in a step
    by_tokens = srb.generate([tuple(prompt.encode()) for prompt in prompts], **asked)
    assert by_tokens == together
    assert srb.generate(prompts[:1], **asked) == [together[0]]


def test_a_wrong_prompt_is_told_before_any_runs(loaded: Loaded) -> None:
    with pytest.raises(
        InvalidRequestError, match=r"^prompt\[1\]: prompt has at least 5000 tokens, more than the 4096 cells"
    ) as caught:
        srb.generate(["Once", "x" * 5000], 2)
    assert caught.value.param == "prompt[1]"
    assert loaded[0][1].rows == 0
    assert len(loaded) == 1
    srb.generate("Once", 1, max_tokens=1)
    assert len(loaded) == 1


def test_texts_as_a_table(loaded: Loaded) -> None:
    pytest.importorskip("pandas")
    texts = srb.generate("Once", 3, max_tokens=4, seed=5, temperature=0.5, logprobs=0)
    table = texts.to_pandas()
    assert table.columns.tolist() == [
        *("prompt", "alternative", "seed", "text", "n_tokens", "finish_reason", "stop_reason", "mean_logprob"),
        *("max_tokens", "temperature"),
    ]
    assert table["text"].tolist() == texts
    assert table["seed"].tolist() == [5, 6, 7]
    assert table["mean_logprob"].tolist() == [text.mean_logprob for text in texts]
    assert (table["temperature"] == 0.5).all()
    both = srb.generate(["Once", "Twice"], 3, max_tokens=4, seed=5).to_pandas()
    assert both["prompt"].tolist() == ["Once"] * 3 + ["Twice"] * 3
    assert both["mean_logprob"].isna().all()
    assert both["alternative"].tolist() == [0, 1, 2] * 2


def test_jupyter_shows_a_table_without_the_texts_html() -> None:
    def output(text: str, **attributes: Any) -> CompletionOutput:
        shown = {"prompt": "p", "alternative": 0, "seed": 1, "token_ids": (1,), "logprobs": None, "settings": {}}
        return CompletionOutput.of(text, finish_reason="stop", stop_reason=None, **shown | attributes)

    html = CompletionOutputs([output("<script>alert('&')</script>")])._repr_html_()
    assert "<script>" not in html
    assert "&lt;script&gt;alert(&#x27;&amp;&#x27;)&lt;/script&gt;" in html
    assert "prompt" not in html
    assert "mean_logprob" not in html
    one, other = (CompletionOutputs([output("t", prompt=prompt, logprobs=(-0.5,))]) for prompt in ("<b>", (1, 2)))
    html = CompletionOutputs([one, other])._repr_html_()
    assert html.count("<tr>") == 3
    for cell in ("&lt;b&gt;", "(1, 2)", "-0.500", "mean_logprob", "prompt"):
        assert f">{cell}</t" in html


def test_without_pandas_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(NotSupportedError, match=r"^to_pandas needs pandas: pip install 'llama-srb\[notebook\]'$"):
        CompletionOutputs[CompletionOutput]().to_pandas()


def test_texts_can_be_sent_to_other_processes(loaded: Loaded) -> None:
    texts = srb.generate(["Once", "Twice"], 2, max_tokens=3, logprobs=1)
    for copied in (pickle.loads(pickle.dumps(texts)), copy.deepcopy(texts)):
        assert copied == texts
        assert type(copied) is CompletionOutputs
        assert [vars(text) for part in copied for text in part] == [vars(text) for part in texts for text in part]


def test_in_a_notebook_tqdm_counts(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int] = []

    class Bar(contextlib.nullcontext[None]):
        def __init__(self, **given: Any) -> None:
            super().__init__()
            counted.append(given["total"])

        def __enter__(self) -> Any:
            return self

        def update(self, n: int) -> bool:
            counted.append(n)
            return True

    tqdm: Any = types.ModuleType("tqdm.auto")
    tqdm.tqdm = Bar
    monkeypatch.setitem(sys.modules, "tqdm.auto", tqdm)
    monkeypatch.setattr("srb.files.download.error_console", lambda: Console(force_jupyter=True, file=io.StringIO()))
    srb.generate(["Once", "Twice"], n=3, max_tokens=2)
    assert counted == [6] + [1] * 6
    assert len(srb.score("Once", [" upon", " more"])) == 2
    assert counted[7:] == [2, 1, 1]
    srb.generate("Once", n=3, max_tokens=2, progress=False)
    assert len(counted) == 10
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    assert len(srb.generate("Once", n=3, max_tokens=2)) == 3
    assert len(counted) == 10


def test_a_printed_score_has_its_value(loaded: Loaded) -> None:
    (scored,) = srb.score("Once", [" upon"])
    assert scored.logprob == pytest.approx(sum(scored.logprobs))
    assert repr(scored).startswith(f"Score(logprob={scored.logprob}, tokens=(32, ")
    assert dataclasses.asdict(scored)["logprob"] == scored.logprob


def test_texts_may_stop_at_a_text_or_a_list_of_them(loaded: Loaded) -> None:
    (text,) = srb.generate("Once", 1, max_tokens=9, seed=4)
    assert srb.generate("Once", 1, max_tokens=9, seed=4, stop=text[3]) == [text.partition(text[3])[0]]
    assert srb.generate("Once", 1, max_tokens=9, seed=4, stop=[text[3], "~"]) == [text.partition(text[3])[0]]


def test_the_other_ends_of_texts(loaded: Loaded) -> None:
    (text,) = srb.generate("Once", 1, max_tokens=9, seed=4)
    before = text.partition(text[3])[0]
    token = text[3].encode()[0]
    assert srb.generate("Once", 1, max_tokens=9, seed=4, stop_token_ids=[token]) == [before]
    shown = srb.generate("Once", 1, max_tokens=9, seed=4, stop=text[3], include_stop_str_in_output=True)
    assert shown == [before + text[3]]
    assert srb.generate("Once", 1, max_tokens=9, seed=4, bad_words="never") == [text]


class BosTokenizer(ByteTokenizer):
    """It adds BOS, the token 1."""

    def tokenize(self, text: str, *, is_prompt: bool = True, parse_special: bool = True) -> tuple[int, ...]:
        return (1, *text.encode()) if is_prompt else tuple(text.encode())

    def piece(self, token: int) -> bytes:
        return b"" if token == 1 else super().piece(token)


def test_an_empty_prompt_is_the_bos_token_of_a_model_that_has_one(
    loaded: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InvalidRequestError, match=r"^prompt must not be empty: this model adds no BOS token$"):
        srb.generate("", 1)
    params = SamplingParams(seed=1, max_tokens=4)
    with pytest.raises(InvalidRequestError, match=r"^prompt\[1\] must not be empty: this model adds no BOS") as caught:
        Engine(FakeBackend()).add_request(CompletionRequest(("a", ""), (params,)))
    assert caught.value.param == "prompt[1]"
    fake = FakeBackend(n_cells=4096, script=babble, tokenizer=BosTokenizer())
    monkeypatch.setattr("srb.llama.backend.LlamaBackend", lambda _settings: fake)
    api.loaded_model.close()
    assert srb.generate("", 1, max_tokens=4, seed=1) == srb.generate((1,), 1, max_tokens=4, seed=1) != [""]
    both = CompletionRequest(("a", ""), (params,))
    engine = Engine(FakeBackend(n_cells=4096, script=babble, tokenizer=BosTokenizer()))
    assert {event.index for event in LLM(engine).run(both) if isinstance(event, StreamEvent)} == {0, 1}


def text_of(engine: Engine, prompt: Any, **params: Any) -> str:
    request = CompletionRequest((prompt,), (SamplingParams(**{"seed": 1, "max_tokens": 4} | params),))
    return "".join(event.text for event in LLM(engine).run(request) if isinstance(event, StreamEvent))


async def test_prompts_may_be_texts() -> None:
    engine = Engine(FakeBackend(n_cells=4096, script=babble))
    params = {"negative_prompt": "none", "guidance_scale": 1.5}
    tokens = {"negative_prompt": tuple(b"none"), "guidance_scale": 1.5}
    assert text_of(engine, "Once", **params) == text_of(engine, tuple(b"Once"), **tokens)
    explore = Explore(depth=1, top_k=1)
    async with AsyncEngine(lambda _progress: FakeBackend(n_cells=4096, script=babble)) as other:
        request = CompletionRequest(("Once",), SamplingParams(seed=1, max_tokens=4).alternatives(1))
        texts = [event.text async for event in other.generate(request) if isinstance(event, StreamEvent)]
        assert "".join(texts) == text_of(engine, "Once")
        by_text = [node.tokens async for node in other.explore("Once", explore)]
        assert by_text == [node.tokens async for node in other.explore(tuple(b"Once"), explore)] != []


def test_paths_may_be_texts() -> None:
    given: dict[str, Any] = {"model": "a.gguf", "history": "a.db"}
    settings = Settings(**given)
    assert (settings.model, settings.history) == (Path("a.gguf"), Path("a.db"))


ONE: Any = SamplingParams().alternatives(1)
PAIRS = "; write a tuple such as ((15043, 1.0),)"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: SamplingParams(temperature="hot"), "temperature takes a number, got 'hot'"),  # type: ignore[arg-type]
        (lambda: SamplingParams(seed=True), "seed takes a whole number, got True"),
        (lambda: SamplingParams(grammar=5), "grammar takes a text or None, got 5"),  # type: ignore[arg-type]
        (lambda: SamplingParams(stop="."), "stop takes a tuple, got '.'; write ('.',)"),  # type: ignore[arg-type]
        (
            lambda: SamplingParams(logprobs=1),  # type: ignore[call-arg]
            "SamplingParams has no field 'logprobs'; help(srb.SamplingParams) lists the fields",
        ),
        (
            lambda: SamplingParams(logit_bias={5: 1.0}),  # type: ignore[arg-type]
            "logit_bias takes a tuple, got {5: 1.0}; write a tuple such as ((1, 0.5),)",
        ),
        (
            lambda: SamplingParams(logit_bias=((5, "x"),)),  # type: ignore[arg-type]
            "logit_bias takes pairs of a token id and a number, got (5, 'x')" + PAIRS,
        ),
        (lambda: SamplingParams(negative_prompt=5), "negative_prompt takes a text or a tuple or None, got 5"),  # type: ignore[arg-type]
        (lambda: CompletionRequest("Once", ONE), "prompts takes a tuple, got 'Once'; write ('Once',)"),  # type: ignore[arg-type]
        (lambda: CompletionRequest((5,), ONE), "prompt takes a text, or a tuple of token ids, got 5"),  # type: ignore[arg-type]
        (lambda: Settings(ctx_size="4096"), "--ctx-size takes a whole number, got '4096'"),  # type: ignore[arg-type]
        (lambda: Settings(model=5), "--model takes a path, as a text or a pathlib.Path or None, got 5"),  # type: ignore[arg-type]
        (lambda: srb.LlamaBackend("a.gguf"), "takes srb.Settings, got 'a.gguf'; write Settings(model=...)"),  # type: ignore[arg-type]
        (lambda: srb.generate(5), "prompt takes a text, or a tuple of token ids, got 5"),  # type: ignore[call-overload]
        (lambda: srb.generate([]), "prompt must have at least one text"),
        (lambda: srb.generate(["a", "b"], n=0), "prompt[0]: n must be at least 1, got 0"),
        (lambda: SamplingParams(stop=(5,)), "stop takes texts, got 5"),  # type: ignore[arg-type]
        (lambda: SamplingParams().alternatives(True), "n takes a whole number, got True"),
        (lambda: CompletionRequest(((1, "a"),), ONE), "prompt takes whole numbers as token ids, got (1, 'a')"),  # type: ignore[arg-type]
        (lambda: srb.score("a", []), "candidates must have at least one text"),
        (
            lambda: srb.generate("a", temprature=1),
            "SamplingParams has no field 'temprature'; did you mean temperature?",
        ),
        (lambda: srb.score("a", "b"), "candidates takes a list of texts, got 'b'; write [...] around it"),
    ],
)
def test_the_error_of_a_wrong_type_says_what_to_pass(loaded: Loaded, call: Callable[[], object], message: str) -> None:
    with pytest.raises(SrbError) as caught:
        call()
    assert isinstance(caught.value, (InvalidRequestError, SettingsError))
    assert caught.value.message == message


def test_numbers_may_be_numpys() -> None:
    np = pytest.importorskip("numpy")
    params = SamplingParams(temperature=np.float32(0.5), top_k=np.int64(3))
    assert (params.temperature, params.top_k) == (0.5, 3)
    with pytest.raises(InvalidRequestError, match="top_k takes a whole number"):
        SamplingParams(top_k=np.float32(0.5))

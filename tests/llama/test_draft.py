"""A draft model on the real llama.cpp: it goes on with texts as it would alone, and the large model's texts stay."""

import math
import random
from array import array
from collections.abc import Callable
from pathlib import Path

import pytest
from driver import request, run, texts
from fixed_costs import fix_costs
from tiny_model import write_tiny_model

from srb.engine.backend import Batch, Costs
from srb.engine.engine import Engine
from srb.engine.kv_cache.radix import pack
from srb.errors import BackendError, ModelLoadError
from srb.llama.backend import LlamaBackend
from srb.llama.draft import LlamaDrafter
from srb.options.settings import Settings

Load = Callable[..., LlamaBackend]

CARD = Costs(step=1.0, row=0.01, prompt_token=0.01, row_cell=0.0, prompt_cell=0.0)
"""Rows cost nearly nothing compared with a step, as on a graphics card."""


@pytest.fixture
def quick(load: Load, tiny_model: Path) -> Callable[..., LlamaBackend]:
    """Loads the tiny model with a draft model that seems to be quick. Without `draft` it is the same model."""

    def make(draft: Path = tiny_model, **options: object) -> LlamaBackend:
        backend = load(model_draft=draft, **options)
        drafter = drafter_of(backend)
        drafter.making_seconds, drafter.reading = (0.05, 0.05), 0.01
        fix_costs(backend, CARD)
        return backend

    return make


def drafter_of(backend: LlamaBackend) -> LlamaDrafter:
    assert backend.drafter
    return backend.drafter


@pytest.mark.parametrize("n", [1, 4])
def test_the_model_as_its_own_draft_model(quick: Load, load: Load, tmp_path: Path, n: int) -> None:
    confident = write_tiny_model(tmp_path / "confident.gguf", scale=1.5)  # of what it says next
    each = request("The night", n=n, temperature=0.0, max_tokens=60, ignore_eos=True)  # no end is likeliest there
    engine, plain = Engine(quick(confident, model=confident)), Engine(load(model=confident, draft_max=0))
    assert texts(run(engine, each)) == texts(run(plain, each))
    assert engine.stats().n_accepted == engine.stats().n_drafted > 50 * n
    assert engine.stats().steps < 10


def test_another_model_changes_no_text(quick: Load, load: Load, tmp_path: Path) -> None:
    draft = write_tiny_model(tmp_path / "draft.gguf", seed=1, n_layer=1)
    each = request("Once upon a time", n=3, max_tokens=60, ignore_eos=True, banned_strings=tuple("abcdefgh"))
    engine = Engine(quick(draft))
    assert texts(run(engine, each)) == texts(run(Engine(load(draft_max=0)), each))
    assert engine.stats().n_drafted > 0


@pytest.mark.parametrize("seed", range(4))
def test_texts_that_come_go_back_and_part_are_continued_as_if_alone(quick: Load, seed: int) -> None:
    """Each draft is compared with that of a place that has read nothing else."""
    rng = random.Random(seed)
    drafter, alone = drafter_of(quick(ctx_size=512)), drafter_of(quick(ctx_size=512))
    known = [pack([rng.randrange(256) for _ in range(rng.randint(1, 60))]) for _ in range(3)]
    for _ in range(40):
        chosen = []
        for _ in range(rng.randint(1, 4)):
            base = rng.choice(known)
            text = base[: rng.randint(1, len(base))] + pack([rng.randrange(256) for _ in range(rng.randint(0, 3))])
            chosen.append(text)
        n = rng.randint(0, 5)
        drafted = drafter.draft(rng.choice("ab"), chosen, n, 0.0)
        for text, tokens in zip(chosen, drafted, strict=True):
            assert tokens == fresh(alone, text, n)
            known = [*known[-6:], text + pack(tokens[: rng.randint(0, n)])]
    lengths_of(drafter)


def lengths_of(drafter: LlamaDrafter) -> list[int]:
    """How many tokens its sequences have, as llama.cpp counts them. Its own count must be the same."""
    lengths = [drafter._context.length(seq.seq_id) for seq in drafter._sequences]
    assert lengths == [len(seq.tokens) for seq in drafter._sequences]
    return lengths


def fresh(drafter: LlamaDrafter, text: "array[int]", n: int) -> list[int]:
    return drafter.draft(object(), [text], n, 0.0)[0]


def test_it_stops_where_its_tokens_are_less_likely_than_wanted(quick: Load) -> None:
    drafter = drafter_of(backend := quick())
    known = [pack(list(text)) for text in (b"Once upon a time", b"The night")]
    all_tokens = [fresh(drafter, text, 8) for text in known]
    likely = []
    for text, tokens in zip(known, all_tokens, strict=True):
        batch = Batch()
        last = batch.add((*text, *tokens), 0, 0, outputs=9)
        backend.decode(batch, None)
        likely.append(math.exp(sum(backend.logprobs(backend.logits(last - 8 + k), tokens[k], 0)[0] for k in range(3))))
        backend.remove(0)
    assert likely[0] != likely[1]
    for least in (0.99 * max(likely), 0.99 * min(likely)):
        drafted = drafter.draft("", known, 3, least)
        for tokens, whole, p in zip(drafted, all_tokens, likely, strict=True):
            assert tokens == whole[: len(tokens)]
            assert (len(tokens) == 3) is (p >= least)
    lengths_of(drafter)


def test_what_it_knows_is_only_known_to_the_same_owner(quick: Load) -> None:
    drafter = drafter_of(quick())
    text = pack(list(b"Once upon a time"))
    drafter.draft("a", [text], 2, 0.0)
    assert drafter.known("a", text) == len(text)
    assert drafter.known("b", text) == 0


def test_where_there_is_no_room_it_says_so_and_has_room_again(quick: Load) -> None:
    drafter = drafter_of(quick(ctx_size=256))
    long = [pack([k] * 100) for k in range(4)]
    with pytest.raises(BackendError, match="llama_decode failed"):
        drafter.draft("", long, 1, 0.0)
    assert lengths_of(drafter) == [0] * 4
    for text in long:  # each alone, and those before make room
        assert len(drafter.draft("", [text], 3, 0.0)[0]) == 3


def test_it_sleeps_with_the_model(quick: Load) -> None:
    backend = quick(sleep_idle_seconds=1)
    engine = Engine(backend)
    each = request("Once", temperature=0.0, max_tokens=30, ignore_eos=True)
    said = texts(run(engine, each))
    engine.step()
    engine.sleep()
    engine.sleep()
    n_accepted = engine.stats().n_accepted
    assert texts(run(engine, each)) == said
    assert engine.stats().n_accepted == 2 * n_accepted > 0


def test_more_tokens_at_the_end_are_no_other_vocabulary(quick: Load, tmp_path: Path) -> None:
    """Its most probable token may be one that the large model doesn't have: it never becomes a draft token."""
    draft = write_tiny_model(tmp_path / "draft.gguf", n_vocab=900)
    engine = Engine(quick(draft))
    events = run(engine, request("Once upon a time", max_tokens=40, ignore_eos=True))
    assert len(texts(events)[0]) > 0
    assert engine.stats().n_drafted > 0
    assert engine.stats().last_error is None


def test_another_vocabulary_is_refused(load: Load, tiny_model: Path, tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "model.gguf", n_vocab=300)
    draft = write_tiny_model(tmp_path / "draft.gguf", n_vocab=300, prefix="u")
    with pytest.raises(ModelLoadError) as caught:
        load(model=model, model_draft=draft)
    assert caught.value.message == (
        f"--model-draft {draft} can't be used with {model}, because it has another vocabulary: token 258 is 'u258' "
        "there, and not 't258'; use a smaller model of the same family, or leave the option out"
    )


def test_files_that_cannot_be_used_are_refused(load: Load, tmp_path: Path) -> None:
    (tmp_path / "text.gguf").write_text("no model")
    with pytest.raises(ModelLoadError, match=r"--model-draft .*text.gguf is not a GGUF file"):
        load(model_draft=tmp_path / "text.gguf")
    with pytest.raises(ModelLoadError, match=r"--model-draft .*none.gguf can't be read: No such file"):
        load(model_draft=tmp_path / "none.gguf")
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(write_tiny_model(tmp_path / "whole.gguf").read_bytes()[:20_000])
    with pytest.raises(ModelLoadError, match=r"--model-draft: the model .*broken.gguf can't be loaded"):
        load(model_draft=broken)


@pytest.mark.parametrize("arch", ["mamba", "jamba", "gemma3"])
def test_models_that_forget_have_no_draft_and_are_none(load: Load, tmp_path: Path, arch: str) -> None:
    forgets = write_tiny_model(tmp_path / "forgets.gguf", arch=arch)
    with pytest.raises(ModelLoadError, match=r"--model-draft .* it has a sliding window or a recurrent state"):
        load(model_draft=forgets)
    with pytest.raises(ModelLoadError, match=r"--model-draft .* this model has a sliding window"):
        load(model=forgets, model_draft=write_tiny_model(tmp_path / "draft.gguf"))


@pytest.mark.parametrize("options", [{"reproducible": True, "ctx_size": 4096, "ubatch_size": 64}, {"draft_max": 0}])
def test_without_speculative_decoding_it_is_not_loaded(
    load: Load, tmp_path: Path, caplog: pytest.LogCaptureFixture, options: dict[str, object]
) -> None:
    backend = load(model_draft=tmp_path / "there is none.gguf", **options)
    assert backend.drafter is None
    assert "--model-draft has no effect, because --" in caplog.text


def test_what_is_measured_is_a_part_of_a_step(load: Load, tmp_path: Path) -> None:
    large = write_tiny_model(tmp_path / "large.gguf", n_layer=12, n_embd=256, n_ff=2048, layers_alike=True)
    drafter = drafter_of(load(model=large, model_draft=write_tiny_model(tmp_path / "draft.gguf", n_layer=1)))
    assert 0 < drafter.making(1) < 0.8
    assert 0 < drafter.making(4) < 0.8
    assert min(drafter.making(1), drafter.making(4)) <= drafter.making(2) <= max(drafter.making(1), drafter.making(4))
    assert 0 < drafter.reading < drafter.making(1)


def test_one_row_is_enough(load: Load, tiny_model: Path) -> None:
    drafter = drafter_of(load(model_draft=tiny_model, parallel=1, batch_size=1))
    assert drafter.n_texts == 1
    assert Settings(model_draft=str(tiny_model)).model_draft == tiny_model  # type: ignore[arg-type]

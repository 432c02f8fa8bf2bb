"""The engine on the real llama.cpp, with a tiny random-weight model whose text is the hardest UTF-8 there is."""

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import llama_cpp
import pytest
from driver import check_order, request, run, stops, texts
from tiny_model import CONTROL, EOS, N_VOCAB, write_tiny_model

from srb.engine.backend import Batch
from srb.engine.engine import Engine
from srb.errors import BackendError, ModelLoadError, UnavailableError
from srb.llama.backend import LlamaBackend
from srb.llama.model.tokenizer import LlamaTokenizer
from srb.llama.native.stack import with_stack
from srb.options.settings import Settings

Load = Callable[..., LlamaBackend]


def test_a_temperature_too_small_to_divide_by_is_0(load: Load) -> None:
    engine = Engine(load())
    greedy = texts(run(engine, request(temperature=0, max_tokens=20)))
    for temperature in (1e-45, 1e-38, 1e-20):
        assert texts(run(engine, request(temperature=temperature, max_tokens=20))) == greedy


def test_reproducible_states_fit_no_other_server(load: Load) -> None:
    reproducible = load(reproducible=True, ubatch_size=64)
    assert reproducible.identity != load(flash_attn="off", ubatch_size=64).identity


def test_a_full_context_is_used_to_the_last_cell(load: Load) -> None:
    engine = Engine(backend := load(ctx_size=256))
    ended = stops(run(engine, request("p" * 200, 4, max_tokens=-1, ignore_eos=True)))
    assert {(stop.finish_reason, stop.length) for stop in ended.values()} == {("length", 57)}
    ended = stops(run(engine, request("p" * 256, 8, ignore_eos=True)))
    assert {(stop.finish_reason, stop.length) for stop in ended.values()} == {("length", 1)}
    assert backend.used_seq_ids() == []


def test_the_context_is_rounded_up_as_llama_cpp_does(load: Load) -> None:
    assert load(ctx_size=100).n_cells == 256
    assert load(ctx_size=0).n_cells == 4096  # what the model was trained for


def test_a_context_beyond_the_training_is_warned_of(load: Load, caplog: pytest.LogCaptureFixture) -> None:
    load(ctx_size=8192)
    assert "with --ctx-size 8192 texts may be longer than the 4096 tokens that the model was trained for" in caplog.text


def test_an_evaluation_is_interrupted_in_the_middle(load: Load, caplog: pytest.LogCaptureFixture) -> None:
    backend = load(ctx_size=4096, batch_size=4096)
    batch = Batch()
    batch.add(tuple(b"p" * 3000), 0, 0, outputs=1)
    asked = []

    def interrupted() -> bool:
        asked.append(True)
        return len(asked) > 50

    assert not backend.decode(batch, interrupted)
    assert len(asked) == 51
    assert not caplog.records  # llama.cpp calls it an error; it isn't
    backend.remove(0)
    assert backend.used_seq_ids() == []
    assert backend.decode(batch, lambda: False)


def test_what_llama_cpp_refuses_becomes_an_error_and_it_lives(load: Load) -> None:
    engine = Engine(backend := load())
    batch = Batch()
    batch.add((1,), 5, 0, outputs=1)
    batch.add((1,), 3, 0, outputs=1)  # positions must go up
    with pytest.raises(BackendError, match=r"llama_decode failed with code -1: .+"):
        backend.decode(batch, None)
    huge = Batch()
    huge.add((1,) * 5000, 0, 0, outputs=1)
    with pytest.raises(BackendError, match="a batch has 1 to"):
        backend.decode(huge, None)
    backend.remove(0)
    assert len(texts(run(engine, request(n=2, max_tokens=5, ignore_eos=True)))) == 2


def test_more_logits_than_there_is_room_for_are_refused(load: Load) -> None:
    wide = Batch()
    wide.add((1,) * 137, 0, 0, outputs=137)
    with pytest.raises(BackendError, match="up to 136 rows with logits, not 137"):
        load(batch_size=256).decode(wide, None)


def test_the_tokenizer(load: Load) -> None:
    tokenizer = load().tokenizer
    assert tokenizer.n_vocab == N_VOCAB
    assert tokenizer.tokenize("hé<|control|>") == (*"hé".encode(), CONTROL)
    assert tokenizer.piece(ord("h")) == b"h"
    assert tokenizer.piece(CONTROL) == b""
    assert [token for token in range(N_VOCAB) if tokenizer.is_end(token)] == [EOS]
    assert tokenizer.longest_piece == len("<|endoftext|>")
    assert tokenizer.detokenize([*"hé".encode(), CONTROL, EOS]) == "hé<|control|><|endoftext|>".encode()
    assert tokenizer.tokenize("<|control|>" * 1_000, parse_special=False) == tuple(b"<|control|>" * 1_000)
    assert (tokenizer.special.eos, tokenizer.special.fim_pre) == (EOS, None)


def test_a_closed_tokenizer_says_so(load: Load) -> None:
    backend = load()
    backend.close()
    with pytest.raises(UnavailableError):
        backend.tokenizer.tokenize("p")


@pytest.mark.parametrize("pre", ["gpt-2", "gpt-4o", "llama-bpe", "deepseek-v3"])
def test_a_long_run_of_one_character_is_tokenized(tmp_path: Path, pre: str) -> None:
    """Where the vocabulary is split by std::regex, this ends the process in a stack of the usual size."""
    path = write_tiny_model(tmp_path / "tiny.gguf", pre=pre)
    with LlamaBackend(Settings(model=path)) as backend:
        for char in ("a", " ", "1", "!", "\n"):
            assert len(backend.tokenizer.tokenize(char * 300_000)) == 300_000


def test_without_memory_for_a_stack_there_is_an_error() -> None:
    with pytest.raises(UnavailableError, match="no memory for a thread with a stack of"):
        with_stack(int, 1 << 50)
    assert threading.stack_size() == 0


def test_stacks_outlive_the_main_thread() -> None:
    program = (
        "import threading, time; from srb.llama.native.stack import with_stack\n"
        "def call(): threading.main_thread().join(); time.sleep(0.1); print(with_stack(lambda: 5, 0))\n"
        "threading.Thread(target=call).start()"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "5\n"


def test_many_threads_tokenize_at_once(load: Load) -> None:
    tokenizer: LlamaTokenizer = load().tokenizer
    results: list[int] = []
    threads = [
        threading.Thread(target=lambda size=size: results.append(len(tokenizer.tokenize("a" * size))))
        for size in (10, 5_000, 50_000) * 4
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == sorted((10, 5_000, 50_000) * 4)


def test_loading_reports_its_progress_and_can_be_stopped(tiny_model: Path) -> None:
    seen: list[float] = []

    def progress(fraction: float) -> bool:
        seen.append(fraction)
        return True

    LlamaBackend(Settings(model=tiny_model), progress).close()
    assert seen == sorted(seen)
    assert seen[-1] == 1
    with pytest.raises(ModelLoadError):
        LlamaBackend(Settings(model=tiny_model), lambda _fraction: False)


def test_a_quantized_v_cache_without_flash_attention_is_refused_with_the_reason(load: Load) -> None:
    with pytest.raises(ModelLoadError, match=r"(?i)flash.attn|flash attention"):
        load(flash_attn="off", cache_type_v="q8_0")
    load(flash_attn="on", cache_type_v="f16", cache_type_k="bf16")


def test_as_many_alternatives_run_at_once_as_llama_cpp_has_sequences(load: Load) -> None:
    engine = Engine(backend := load(parallel=255, ctx_size=2048))
    engine.add_request(each := request("p" * 100, 255, max_tokens=6, ignore_eos=True))
    events = [*engine.step(), *engine.step(), *engine.step()]
    assert engine.stats().sequences == 255
    events += run(engine)
    check_order(events, each)
    assert {stop.length for stop in stops(events).values()} == {6}
    assert backend.used_seq_ids() == []


def test_a_state_that_is_too_large_is_not_copied(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = load()
    batch = Batch()
    batch.add(tuple(b"p" * 60), 0, 0, outputs=1)
    assert backend.decode(batch, None)
    state = backend.save(0, 0, 60, 1 << 20)
    assert state is not None
    copies: list[object] = []
    monkeypatch.setattr(llama_cpp, "llama_state_seq_get_data", lambda *args: copies.append(args))
    assert backend.save(0, 0, 60, len(state) - 1) is None
    assert copies == []
    assert backend.used_seq_ids() == [0]


@pytest.mark.parametrize("arch", ["gemma3", "mamba", "jamba"])
def test_a_fork_that_would_go_on_with_a_wrong_state_is_a_bug_and_not_silent(tmp_path: Path, arch: str) -> None:
    settings = Settings(model=write_tiny_model(tmp_path / "tiny.gguf", arch=arch), ctx_size=1024, parallel=4)
    with LlamaBackend(settings) as backend:
        for start in range(0, 400, 100):
            batch = Batch()
            batch.add(tuple(b"p" * 100), start, 0, outputs=1)
            assert backend.decode(batch, None)
        batch = Batch()
        batch.add(tuple(b"q" * 100), 0, 1, outputs=1)
        assert backend.decode(batch, None)
        first = backend.continuable_from(0)
        if arch == "gemma3":
            assert first < 400
        else:
            assert first == 400
        backend.fork(0, 2, 400)
        if first:
            with pytest.raises(RuntimeError, match="can't be forked"):
                backend.fork(0, 3, first - 1)

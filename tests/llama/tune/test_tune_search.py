"""`srb tune` chooses the fastest of what is close enough, prints it, and stores it."""

import shutil
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tiny_model import write_tiny_model

from srb.cli import main
from srb.engine.backend import Batch
from srb.llama.backend import LlamaBackend
from srb.llama.model import weights
from srb.llama.native.cost_model import AttentionCosts
from srb.llama.native.params import physical_cores
from srb.llama.native.state import raised
from srb.llama.tune import probe, result, search
from srb.llama.tune.probe import Attention, Shape, Timings, Weights
from srb.llama.tune.result import choose, read_tuned, stored_files
from srb.llama.tune.search import DEFAULT_ATTENTION
from srb.options.settings import Settings

SHAPE = Shape(chunk=512, depth=4096, rows=(1, 8, 32))


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, converted: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def converted(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the weights of the tiny model in all formats."""
    folder = tmp_path_factory.mktemp("converted")
    for name in weights.FORMATS:
        shutil.copy(weights.convert(tiny_model, name), folder / name)
    return folder


@dataclass
class Machine:
    """A machine on which everything takes the time that a test says.

    Attributes:
        slow: how many times as long as the fastest something takes, by the weights, the cache's type, flash attention
            and threads.
        cores: how many it has; None: those of this one.
        computes_bf16: whether it has instructions for bf16.
        divergence: of two models.
        on_measure: gets the measured times, may change them, and may raise something.
    """

    converted: Path
    file_bytes: int
    slow: dict[str, float] = field(default_factory=dict)
    cores: int | None = None
    computes_bf16: bool = False
    divergence: float = 0.001
    on_measure: Callable[[Weights, Attention, Timings], object] = lambda _weights, _attention, _timings: None

    def measure(
        self, weights: Weights, attention: Attention, shape: Shape, *, deep: bool, threads: int | None = None
    ) -> Timings:
        share = weights.n_bytes / self.file_bytes
        kind = "q8_0" if share < 0.35 else "16" if share < 0.7 else "file"
        factor = 1.0
        for name in (kind, attention.cache_type, attention.flash_attn, f"{threads} threads"):
            factor *= self.slow.get(name, 1)
        rows = {n: 0.001 * factor * n for n in shape.rows}
        longer = {n: 2 * seconds for n, seconds in rows.items()} if deep else {}
        last = 0.2 * factor if deep else 1e9
        timings = Timings(shape, attention.flash_attn == "off", 0.1 * factor, last, rows, longer)
        self.on_measure(weights, attention, timings)
        return timings

    def convert(self, path: Path, name: str) -> None:
        target = weights.converted_path(path, name)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(self.converted / name, target)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tiny_model: Path, converted: Path) -> Machine:
    made = Machine(converted, tiny_model.stat().st_size)

    def measure(
        self: Weights, attention: Attention, _tokens: object, shape: Shape, *, deep: bool, threads: int | None = None
    ) -> Timings:
        return made.measure(self, attention, shape, deep=deep, threads=threads)

    for owner, name, value in (
        (search, "convert", made.convert),
        (search, "divergence", lambda *_both: made.divergence),
        (search, "physical_cores", lambda: made.cores or physical_cores()),
        (result, "computes_bf16", lambda: made.computes_bf16),
        (search, "computes_bf16", lambda: made.computes_bf16),
        (Weights, "measure", measure),
    ):
        monkeypatch.setattr(owner, name, value)
    return made


def tune(model: Path, *options: str) -> int:
    return main(["tune", "--model", str(model), "--parallel", "8", "--ctx-size", "1024", *options])


def tuned_of(model: Path) -> result.Tuned:
    tuned = read_tuned(model, Settings())
    assert tuned is not None
    return tuned


def test_all_of_it_on_a_real_model(tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tune(tiny_model) == 0
    said = capsys.readouterr().out
    assert all(name in said for name in ("Chosen: ", "q8_0", "bf16", "f16", "0.0000", "chosen"))
    tuned = tuned_of(tiny_model)
    assert tuned.cost_model is not None
    # How a time is divided between tokens and cells depends on what else the machine does; that there is one doesn't.
    assert tuned.cost_model.on.row + tuned.cost_model.on.row_cell > 0
    assert tuned.cost_model.off.prompt_token + tuned.cost_model.off.prompt_cell > 0
    assert choose(tiny_model, Settings()).cost_model == tuned.cost_model
    with LlamaBackend(Settings(model=tiny_model, ctx_size=1024)) as backend:
        assert f"keys {tuned.cache_type}" in backend.identity
    assert len([each for each in stored_files(tiny_model) if each.suffix == ".gguf"]) == (tuned.weights != "file")
    assert tune(tiny_model, "--once") == 0
    assert capsys.readouterr().out == ""
    assert tune(tiny_model, "--forget") == 0
    assert stored_files(tiny_model) == []
    assert "removed " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("slower", "weights_", "cache_type", "usual"),
    [
        ({"file": 2.0, "16": 1.1}, "q8_0", "f16", "auto"),
        ({"file": 1.01, "bf16": 1.5}, "file", "f16", "auto"),  # hardly slower isn't worth another file
        ({"q8_0": 3.0, "file": 1.5, "auto": 2.0}, "bf16", "f16", "off"),
        ({"q8_0": 3.0, "file": 1.5, "bf16": 0.5, "auto": 2.0}, "bf16", "bf16", "off"),
    ],
)
def test_the_fastest_is_chosen(
    tiny_model: Path, machine: Machine, slower: dict[str, float], weights_: str, cache_type: str, usual: str
) -> None:
    machine.slow |= slower
    machine.computes_bf16 = cache_type == "bf16"
    assert tune(tiny_model) == 0
    tuned = tuned_of(tiny_model)
    assert tuned.cost_model is not None
    assert (tuned.weights, tuned.cache_type, tuned.cost_model.preferred) == (weights_, cache_type, usual)
    assert tuned.flash_attn == "auto"
    assert tuned.cost_model.on.cache_type == "f16"
    assert tuned.cost_model.off.cache_type == (cache_type if usual == "off" else "f16")
    assert len([each for each in stored_files(tiny_model) if each.suffix == ".gguf"]) == (weights_ != "file")


def test_threads_are_compared_unless_they_are_given(tiny_model: Path, machine: Machine) -> None:
    machine.cores = 4
    machine.slow |= {"4 threads": 2.0, "2 threads": 0.9}
    assert tune(tiny_model) == 0
    tuned = tuned_of(tiny_model)
    assert (tuned.threads, tuned.threads_batch) == (2, 2)
    assert tune(tiny_model, "--threads", "3") == 0
    given = read_tuned(tiny_model, Settings(threads=3))
    assert given is not None
    assert (given.threads, given.threads_batch) == (3, 3)


def test_a_disturbed_try_does_not_count(tiny_model: Path, machine: Machine) -> None:
    machine.slow |= {"file": 1.5, "16": 1.1}
    seen = set()

    def disturb(weights: Weights, attention: Attention, timings: Timings) -> None:
        factor = 1.0 if (weights.n_bytes, attention) in seen else 9.0
        seen.add((weights.n_bytes, attention))
        timings.first *= factor
        timings.shallow.update({n: seconds * factor for n, seconds in timings.shallow.items()})

    machine.on_measure = disturb
    assert tune(tiny_model) == 0
    assert tuned_of(tiny_model).weights == "q8_0"


def test_what_diverges_is_refused(tiny_model: Path, machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    machine.slow |= {"file": 2.0}
    machine.divergence = 0.02
    assert tune(tiny_model) == 0
    assert choose(tiny_model, Settings()).weights == tiny_model
    assert "refused: more than 0.01" in " ".join(capsys.readouterr().out.split())


def test_a_large_model_is_not_converted(
    tiny_model: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(weights, "available_memory", lambda: tiny_model.stat().st_size)
    assert tune(tiny_model) == 0
    assert choose(tiny_model, Settings()).weights == tiny_model
    assert "not converted: the model has 0 MiB, more than half" in capsys.readouterr().out
    assert [each.suffix for each in stored_files(tiny_model)] == [".toml"]


def test_a_search_that_is_stopped_leaves_the_earlier_result(
    tiny_model: Path, machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.slow |= {"file": 2.0, "16": 1.1}
    left = [8]

    def stop(*_measured: object) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt

    machine.on_measure = stop
    assert tune(tiny_model) == 130
    assert "nothing is saved" in capsys.readouterr().out
    assert stored_files(tiny_model) == []
    left[0] = 1000
    assert tune(tiny_model) == 0
    known, files = tuned_of(tiny_model), stored_files(tiny_model)
    left[0] = 8
    assert tune(tiny_model) == 130
    assert (tuned_of(tiny_model), stored_files(tiny_model)) == (known, files)


def test_weights_that_are_there_are_not_said_to_be_converted(tiny_model: Path, machine: Machine) -> None:
    machine.slow |= {"file": 2.0, "16": 1.1}
    assert tune(tiny_model) == 0
    said: list[str] = []
    search.Search(tiny_model, Settings(parallel=8, ctx_size=1024), said.append).run()
    assert [each.split()[-1] for each in said if each.startswith("converting")] == ["bf16", "f16"]


def test_what_a_job_takes() -> None:
    timings = Timings(SHAPE, False, first=0.5, last=1.0, shallow={1: 0.01, 8: 0.04, 32: 0.136}, deep={})
    assert timings.job(512, 8, 64) == pytest.approx(0.5 + 64 * 0.04)
    timings.deep = {1: 0.02, 8: 0.076, 32: 0.28}
    # A token takes half a second for 512 of them, and as much again after 4,096.
    costs = timings.costs("f16")
    assert isinstance(costs, AttentionCosts)
    cell = 0.5 / 512 / 4096
    assert costs.prompt_cell == pytest.approx(cell)
    assert costs.prompt_token == pytest.approx(0.5 / 512 - 256 * cell)
    assert costs.row_cell == pytest.approx(0.144 / 32 / 3584)
    assert 8 * costs.row + costs.step == pytest.approx(0.04 - 8 * costs.row_cell * 512)
    assert costs.lone_step + 512 * costs.lone_row_cell == pytest.approx(0.01)
    assert timings.job(512, 8, 64) == pytest.approx(0.5 + 64 * (0.04 + 8 * 32 * 0.036 / 8 / 3584))


def test_a_raised_state_continues_further_on(tiny_model: Path) -> None:
    with LlamaBackend(Settings(model=tiny_model, ctx_size=256, parallel=2, tune=False)) as backend:
        batch = Batch()
        batch.add(tuple(range(50)), 0, 0, outputs=1)
        backend.decode(batch, None)
        state = backend.save(0, 0, 50, 1 << 30)
        assert state is not None
        longer = raised(state, 50)
        assert longer is not None
        assert backend.restore(longer, 0, 50, 100)
        assert backend.length(0) == 100
        assert raised(state[:20], 50) is None
        assert raised(bytearray(len(state)), 50) is None


@pytest.mark.parametrize("arch", ["gemma3", "mamba", "jamba"])
def test_other_kinds_of_memory(tmp_path: Path, arch: str) -> None:
    path = write_tiny_model(tmp_path / "model.gguf", arch=arch)
    with closing(Weights(path, Settings(parallel=4))) as loaded:
        tokens = loaded.tokenize("a text " * 20)
        timings = loaded.measure(DEFAULT_ATTENTION, tokens, Shape(32, 256, (1, 4)), deep=True)
        assert timings.deep[4] > 0
        assert probe.divergence(*[loaded.log_probabilities(DEFAULT_ATTENTION, tokens)] * 2) == 0

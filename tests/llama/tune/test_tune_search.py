"""`srb tune` chooses the fastest of what is close enough, prints it, and stores it."""

import math
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tiny_model import write_tiny_model

from srb.cli import main
from srb.engine.backend import Batch
from srb.llama.backend import LlamaBackend
from srb.llama.model import weights
from srb.llama.model.weights import reason_not_to_convert
from srb.llama.native.cost_model import AttentionCosts
from srb.llama.native.params import physical_cores
from srb.llama.native.state import raised
from srb.llama.sampling.candidates import Floats
from srb.llama.tune import comparison, probe, result, search
from srb.llama.tune.comparison import DEFAULT_ATTENTION
from srb.llama.tune.probe import Attention, Shape, Timings, Weights
from srb.llama.tune.result import choose, read_tuned, stored_files
from srb.options.settings import Settings

pytestmark = pytest.mark.llama

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
        busy_elsewhere: how many seconds other programs have computed.
        computes_bf16: whether the processor does.
        cores: how many it has; None: those of this one.
        divergence: of two models.
        spent: how many seconds the search has taken; None: those of the clock.
        reason_not_to_convert: of weights.
        on_measure: gets the measured times, may change them, and may raise something.
    """

    converted: Path
    file_bytes: int
    slow: dict[str, float] = field(default_factory=dict)
    busy_elsewhere: Callable[[], float] = lambda: 0.0
    computes_bf16: bool = False
    cores: int | None = None
    divergence: Callable[[Floats, Floats], float] = lambda _reference, _other: 0.001
    spent: float | None = None
    reason_not_to_convert: Callable[..., str | None] = reason_not_to_convert
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

    def convert(self, path: Path, name: str, _progress: object) -> None:
        target = weights.converted_path(path, name)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(self.converted / name, target)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tiny_model: Path, converted: Path) -> Machine:
    made = Machine(converted, tiny_model.stat().st_size)
    spent = vars(search.Search)["_spent"].fget

    def measure(
        self: Weights, attention: Attention, _tokens: object, shape: Shape, *, deep: bool, threads: int | None = None
    ) -> Timings:
        return made.measure(self, attention, shape, deep=deep, threads=threads)

    for owner, name, value in (
        (search, "convert", made.convert),
        (search, "reason_not_to_convert", lambda *args: made.reason_not_to_convert(*args)),
        (search, "divergence", lambda *both: made.divergence(*both)),
        (search, "physical_cores", lambda: made.cores or physical_cores()),
        (search, "_LOOK_SECONDS", 0.0),
        (search, "computes_bf16", lambda: made.computes_bf16),
        (search.Search, "_spent", property(lambda self: spent(self) if made.spent is None else made.spent)),
        (result, "computes_bf16", lambda: made.computes_bf16),
        (probe, "busy_elsewhere", lambda: made.busy_elsewhere()),
        (Weights, "measure", measure),
    ):
        monkeypatch.setattr(owner, name, value)
    return made


@pytest.fixture
def slow(machine: Machine) -> dict[str, float]:
    """`Machine.slow`."""
    return machine.slow


def tune(model: Path, *options: str) -> int:
    return main(["tune", "--model", str(model), "--parallel", "8", "--ctx-size", "1024", *options])


def test_all_of_it_on_a_real_model(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Other tests run meanwhile, and may slow a try down so much that its attention is given up.
    patient = (comparison, "HOPELESS", math.inf), (comparison, "_HOPELESS_AT_ONCE", math.inf)
    for module, name, value in (*patient, (probe, "busy_elsewhere", lambda: 0.0)):
        monkeypatch.setattr(module, name, value)
    assert tune(tiny_model) == 0
    said = capsys.readouterr().out
    assert "Chosen: " in said
    assert all(name in said for name in ("q8_0", "bf16", "f16", "0.0000", "chosen"))
    tuned = read_tuned(tiny_model, Settings())
    assert tuned is not None
    assert tuned.cost_model is not None
    # How a time is divided between tokens and cells depends on what else the machine does; that there is one doesn't.
    assert tuned.cost_model.on.row + tuned.cost_model.on.row_cell > 0
    assert tuned.cost_model.off.prompt_token + tuned.cost_model.off.prompt_cell > 0
    costs = tuned.cost_model.on.stream_row_cell, tuned.cost_model.off.stream_row_cell
    assert all(0 <= each < 0.001 for each in costs)
    assert tuned.cost_model.seconds_per_mib >= 0
    choice = choose(tiny_model, Settings())
    assert choice.cost_model == tuned.cost_model
    with LlamaBackend(Settings(model=tiny_model, ctx_size=1024)) as backend:
        assert f"keys {tuned.cache_type}" in backend.identity
    assert len([each for each in stored_files(tiny_model) if each.suffix == ".gguf"]) == (tuned.weights != "file")
    assert tune(tiny_model, "--forget") == 0
    assert stored_files(tiny_model) == []
    assert "removed " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("slower", "weights_", "cache_type", "usual"),
    [
        ({"file": 2.0, "16": 1.1}, "q8_0", "f16", "auto"),
        ({"file": 1.02, "bf16": 1.5}, "file", "f16", "auto"),  # hardly slower isn't worth another file
        ({"q8_0": 3.0, "file": 1.5, "auto": 2.0}, "bf16", "f16", "off"),
        ({"q8_0": 3.0, "file": 1.5, "f16": 1.5, "auto": 2.0}, "bf16", "bf16", "off"),
    ],
)
def test_the_fastest_is_chosen(
    tiny_model: Path, slow: dict[str, float], slower: dict[str, float], weights_: str, cache_type: str, usual: str
) -> None:
    slow |= slower
    assert tune(tiny_model) == 0
    tuned = read_tuned(tiny_model, Settings())
    assert tuned is not None
    assert tuned.cost_model is not None
    assert (tuned.weights, tuned.cache_type, tuned.cost_model.preferred) == (weights_, cache_type, usual)
    assert tuned.flash_attn == "auto"
    assert tuned.cost_model.on.cache_type == "f16"
    assert tuned.cost_model.off.cache_type == (cache_type if usual == "off" else "f16")


def test_threads_are_compared_on_an_idle_machine_only(
    tiny_model: Path, machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.cores = 4
    machine.slow |= {"4 threads": 2.0, "2 threads": 0.9}
    assert tune(tiny_model) == 0
    tuned = read_tuned(tiny_model, Settings())
    assert tuned is not None
    assert (tuned.threads, tuned.threads_batch) == (2, 2)
    machine.busy_elsewhere = time.monotonic  # one processor
    assert tune(tiny_model, "--forget") == 0
    assert tune(tiny_model) == 0
    tuned = read_tuned(tiny_model, Settings())
    assert tuned is not None
    assert (tuned.threads, tuned.threads_batch) == (4, 4)
    assert "thread counts weren't compared" in " ".join(capsys.readouterr().out.split())


def test_a_result_measured_next_to_other_programs_is_uncertain(
    tiny_model: Path, machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.slow |= {"auto": 2.0}
    machine.busy_elsewhere = time.monotonic
    assert tune(tiny_model, "--once") == 0
    assert "This result is provisional: Other programs use 1.0 CPUs" in " ".join(capsys.readouterr().out.split())
    choice = choose(tiny_model, Settings())
    assert choice.cost_model is None
    assert choice.machine_costs is not None
    assert choice.machine_costs.preferred == "off"  # which kind is faster is known all the same
    machine.busy_elsewhere = lambda: 0.0
    assert tune(tiny_model, "--once") == 0
    assert "provisional" not in capsys.readouterr().out
    alone = choose(tiny_model, Settings())
    assert alone.cost_model is not None
    machine.busy_elsewhere = time.monotonic
    assert tune(tiny_model) == 0
    assert "The earlier result stays" in " ".join(capsys.readouterr().out.split())
    assert choose(tiny_model, Settings()) == alone


@pytest.mark.parametrize(
    ("noise", "is_certain"), [(lambda k: 2.0 if k == 1 else 1.0, True), (lambda k: 1.2**-k, False)]
)
def test_tries_are_repeated_until_they_agree(
    tiny_model: Path,
    machine: Machine,
    capsys: pytest.CaptureFixture[str],
    noise: Callable[[int], float],
    is_certain: bool,
) -> None:
    """A first try that is too long is corrected by the others. If no two agree, the choice is uncertain."""
    machine.slow |= {"file": 1.04, "16": 1.1, "auto": 1.02}
    n_tries: dict[object, int] = {}

    def disturb(weights: Weights, attention: Attention, timings: Timings) -> None:
        key = weights.n_bytes, attention
        n_tries[key] = n_tries.get(key, 0) + 1
        factor = noise(n_tries[key])
        for times in (timings.shallow, timings.deep):
            times.update({n: seconds * factor for n, seconds in times.items()})

    machine.on_measure = disturb
    assert tune(tiny_model) == 0
    said = " ".join(capsys.readouterr().out.split())
    tuned = read_tuned(tiny_model, Settings())
    assert tuned is not None
    assert tuned.is_uncertain is not is_certain
    assert ("but tries differed by" in said) is not is_certain
    if is_certain:
        assert tuned.weights == "q8_0"
    assert tune(tiny_model, "--once") == 0
    assert ("Chosen" in capsys.readouterr().out) is not is_certain


def test_the_machine_may_become_busy(tiny_model: Path, machine: Machine) -> None:
    """The search begins again, and compares probabilities of as many tokens as it can then, with its own reference."""
    n_measured, lengths = [0], set()

    def become_busy(_weights: Weights, _attention: Attention, timings: Timings) -> None:
        n_measured[0] += 1
        if n_measured[0] == 8:
            machine.busy_elsewhere = time.monotonic
        timings.first *= 20 if n_measured[0] > 8 else 1  # so fewer tokens are judged

    def compare(reference: Floats, other: Floats) -> float:
        assert reference.shape == other.shape
        lengths.add(len(reference))
        return 0.001

    machine.on_measure = become_busy
    machine.divergence = compare
    assert tune(tiny_model) == 0
    assert len(lengths) == 2
    tuned = read_tuned(tiny_model, Settings())
    assert tuned is not None
    assert tuned.is_uncertain


def test_what_diverges_is_refused(tiny_model: Path, machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    machine.slow |= {"file": 2.0}
    machine.divergence = lambda _reference, _other: 0.02
    assert tune(tiny_model) == 0
    assert choose(tiny_model, Settings()).weights == tiny_model
    said = " ".join(capsys.readouterr().out.split())
    assert "refused: more than 0.01" in said
    assert "budget" not in said
    assert tune(tiny_model, "--once") == 0
    assert capsys.readouterr().out == ""


def test_a_large_model_is_not_converted(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(weights, "available_memory", lambda: tiny_model.stat().st_size)
    assert tune(tiny_model) == 0
    assert choose(tiny_model, Settings()).weights == tiny_model
    assert "not converted: the model has 0 MiB, more than half" in capsys.readouterr().out
    assert [each.suffix for each in stored_files(tiny_model)] == [".toml"]


@pytest.mark.parametrize("calls", [0, 1, 3, 12])
def test_it_can_be_stopped_at_any_time(
    tiny_model: Path,
    machine: Machine,
    capsys: pytest.CaptureFixture[str],
    calls: int,
) -> None:
    machine.slow |= {"file": 2.0, "16": 1.1}
    left = [calls]

    def stop(*_measured: object) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt

    machine.on_measure = stop
    assert tune(tiny_model) == 130
    said = capsys.readouterr().out
    if calls < 12:
        assert "nothing is saved" in said
        assert stored_files(tiny_model) == []
    else:
        assert "Stopped early. Chosen: " in said
        tuned = read_tuned(tiny_model, Settings())
        assert tuned is not None
        assert tuned.weights == "q8_0"


def test_a_time_that_is_up(tiny_model: Path, slow: dict[str, float], capsys: pytest.CaptureFixture[str]) -> None:
    assert tune(tiny_model, "--budget", "0.001") == 0
    assert "not tried, because the time was up" in capsys.readouterr().out
    assert main(["tune", "--model", str(tiny_model), "--budget", "0"]) == 2


@pytest.mark.parametrize(("computes_bf16", "first"), [(False, "q8_0"), (True, "bf16")])
def test_attention_is_known_where_converting_takes_all_the_time(
    tiny_model: Path, machine: Machine, computes_bf16: bool, first: str
) -> None:
    machine.slow |= {"file": 2.0, "auto": 2.0}
    machine.spent, machine.computes_bf16 = 0.0, computes_bf16

    def take_all_the_time(*_arguments: object) -> None:
        machine.spent = 1.1

    machine.reason_not_to_convert = take_all_the_time
    assert tune(tiny_model) == 0
    tuned = read_tuned(tiny_model, Settings())
    assert tuned is not None
    assert tuned.cost_model is not None
    assert (tuned.weights, tuned.cost_model.preferred) == (first, "off")


def test_a_short_look_does_not_replace_a_long_one(
    tiny_model: Path, slow: dict[str, float], capsys: pytest.CaptureFixture[str]
) -> None:
    slow |= {"file": 2.0, "16": 1.1}
    assert tune(tiny_model, "--budget", "0.001", "--once") == 0
    assert "Try a larger --budget" in capsys.readouterr().out
    assert tune(tiny_model, "--once") == 0
    known = read_tuned(tiny_model, Settings())
    assert known is not None
    assert known.weights == "q8_0"
    capsys.readouterr()
    assert tune(tiny_model, "--once") == 0
    assert capsys.readouterr().out == ""
    assert tune(tiny_model, "--budget", "0.001") == 0
    assert "The earlier result stays" in capsys.readouterr().out
    assert read_tuned(tiny_model, Settings()) == known


def test_what_a_job_takes() -> None:
    timings = Timings(SHAPE, False, first=0.5, last=1.0, shallow={1: 0.01, 8: 0.04, 32: 0.136}, deep={})
    assert timings.job(512, 8, 64) == pytest.approx(0.5 + 64 * 0.04)
    deep = Timings(SHAPE, False, 0.5, 1.0, {}, {1: 0.02, 8: 0.076, 32: 0.28})
    timings.merge(deep)
    # A token takes half a second for 512 of them, and as much again after 4,096.
    costs = timings.costs(separate_from=64)
    assert isinstance(costs, AttentionCosts)
    cell = 0.5 / 512 / 4096
    assert costs.prompt_cell == pytest.approx(cell)
    assert costs.prompt_token == pytest.approx(0.5 / 512 - 256 * cell)
    assert costs.row_cell == pytest.approx(0.144 / 32 / 3584)
    assert 8 * costs.row + costs.step == pytest.approx(0.04 - 8 * costs.row_cell * 512)
    assert costs.lone_step + 512 * costs.lone_row_cell == pytest.approx(0.01)
    decoding = costs.seconds([(512, 1, 64)]) - costs.seconds([(512, 1, 0)])
    assert decoding == pytest.approx(64 * (0.01 + 32 * 0.01 / 3584))
    assert timings.job(512, 8, 64) == pytest.approx(0.5 + 64 * (0.04 + 8 * 32 * 0.036 / 8 / 3584))
    other = Timings(SHAPE, False, 0.25, 1e9, {1: 0.005, 8: 0.02, 32: 0.1}, {}).at_depth_of(timings)
    assert other.last == pytest.approx(0.75)
    assert other.deep[8] == pytest.approx(0.056)


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


def test_streams_are_measured(tiny_model: Path) -> None:
    with Weights(tiny_model, Settings(parallel=4)) as loaded:
        tokens = loaded.tokenize("a text " * 20)
        for attention in (DEFAULT_ATTENTION, Attention("bf16", "off")):
            row_cell, prompt_cell = loaded.in_streams(attention, tokens, Shape(64, 2048, (1, 4)))
            assert 0 <= row_cell < 1e-4
            assert 0 <= prompt_cell < 1e-4


@pytest.mark.parametrize("arch", ["gemma3", "mamba", "jamba"])
def test_other_kinds_of_memory(tmp_path: Path, arch: str) -> None:
    path = write_tiny_model(tmp_path / "model.gguf", arch=arch)
    with Weights(path, Settings(parallel=4)) as loaded:
        tokens = loaded.tokenize("a text " * 20)
        timings = loaded.measure(DEFAULT_ATTENTION, tokens, Shape(32, 256, (1, 4)), deep=True)
        assert timings.deep[4] > 0
        assert probe.divergence(*[loaded.log_probabilities(DEFAULT_ATTENTION, tokens)] * 2) == 0

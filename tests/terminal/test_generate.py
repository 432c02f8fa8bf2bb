"""`srb generate` on the fake backend."""

import errno
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from engine.test_token_healing import Spaces
from fake_backend import END, FakeBackend, says
from terminal.conftest import Run

from srb.serving.request_registry import RequestRegistry
from srb.terminal.show import PlainLines


def test_plain_lines_in_the_order_of_the_alternatives(srb: Run, backend: FakeBackend) -> None:
    backend.script = says(b"the first is long", b"two\nlines \\ \x1b[2J")
    assert srb("generate", "p", "-n", "2", "--seed", "0") == 0
    out, err = srb.out, srb.err
    assert out == "0: the first is long\n1: two\\nlines \\\\ \\x1b[2J\n"
    assert err == ""


def test_json_gives_the_events_of_the_server(srb: Run, backend: FakeBackend) -> None:
    backend.script = says(b"a")
    assert srb("generate", "p", "--json", "--branch", "label=x,seed=0", "--branch", "seed=0,max_tokens=1") == 0
    events = [json.loads(line) for line in srb.out.splitlines()]
    assert [event["event"] for event in events] == ["start", "stream", "stream", "stop", "stop", "done"]
    assert (events[0]["model"], events[0]["labels"]) == ("fake", ["x", None])
    assert {event["index"]: event["finish_reason"] for event in events if event["event"] == "stop"} == {
        0: "stop",
        1: "length",
    }


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ((), "ay"),
        (("--no-heal",), " xy"),
        (("--grammar", "x"), " xy"),
        (("--branch", '{"grammar_string": "x"}'), " xy"),
    ],
)
def test_a_space_at_the_end_of_the_prompt_is_healed_unless_that_cannot_be(
    srb: Run, backend: FakeBackend, options: tuple[str, ...], text: str
) -> None:
    backend.tokenizer = Spaces()
    said = {1: 201, 2: ord("y")} if text == "ay" else {2: 200, 3: ord("x"), 4: ord("y")}  # by what is there
    backend.script = lambda params, tokens: said.get(len(tokens), END)
    n = () if "--branch" in options else ("-n", "1")
    assert srb("generate", "p ", *n, *options) == 0
    assert srb.out == f"0: {text}\n"


@pytest.mark.parametrize("arguments", [[], ["-"]])
def test_a_prompt_from_stdin(srb: Run, write_stdin: Callable[[str], None], arguments: list[str]) -> None:
    write_stdin("zwölf\n\n")
    assert srb("generate", *arguments, "--echo", "--max-tokens", "0", "-n", "1") == 0
    assert srb.out == "0: zwölf\\n\n"


def test_a_prompt_from_a_file(srb: Run, tmp_path: Path) -> None:
    (tmp_path / "prompt.txt").write_text("\ufefffrom a file\n")  # as some editors begin it
    assert srb("generate", "--file", "prompt.txt", "--echo", "--max-tokens", "0", "-n", "1") == 0
    assert srb.out == "0: from a file\n"


def test_a_full_disk_is_said(srb: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(PlainLines, "_print", fail)
    assert srb("generate", "p", "-n", "1") == 1
    assert srb.err == "srb: the output can't be written: No space left on device\n"


def test_what_has_no_effect_is_said(srb: Run) -> None:
    assert srb("generate", "p", "-n", "1", "--mirostat", "2", "--top-k", "3") == 0
    assert srb.err == "srb: no effect: top_k\n"


def test_a_broken_alternative_is_said_and_the_exit_code_is_1(srb: Run) -> None:
    assert srb("generate", "p", "--branch", "label=broken", "--branch", "label=whole,max_tokens=0") == 1
    out, err = srb.out, srb.err
    assert out == "broken: \nwhole: \n"
    assert err == "srb: broken: this sampler is broken\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["p", "--branch", "temprature=1"], "there is no 'temprature'; did you mean temperature?"),
        (["p", "--branch", "temperature"], "'temperature' has no value; write NAME=VALUE,..."),
        (["p", "--branch", "temperature=1,temperature=2"], "'temperature' is repeated"),
        (["p", "--branch", '{"seed": '], "takes JSON"),
        (["p", "--branch", "seed=1,top_k=many"], "branches[0].top_k: Input should be a valid integer"),
        (["p", "--branch", "seed=1", "-n", "2"], "n is 2, but branches has 1"),
        (["p", "-n", "33"], "--n 33 is more than --max-n 32"),
        (["p", "--logit-bias", "the"], "logit_bias takes JSON"),
        (["--file", "nowhere"], "--file nowhere can't be read: No such file"),
        ([""], "prompt must not be empty"),
        (["p", "--url", "http://localhost", "-c", "5"], "--ctx-size has no effect with --url"),
        (["p", "--ahead", "2"], "--ahead needs --url"),
    ],
)
def test_wrong_options_are_named(srb: Run, arguments: list[str], message: str) -> None:
    assert srb("generate", *arguments) == 2
    out, err = srb.out, srb.err
    assert (out, message in err) == ("", True), err


def test_wrong_options_are_found_before_the_model_is_loaded(srb: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("srb.serving.async_engine.load_backend")
    assert srb("generate", "p", "--min-p", "2") == 2
    assert srb.err == "srb: min_p must be from 0 to 1, got 2.0\n"


def test_a_variable_for_servers_ends_nothing_here(srb: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "srb.serving.request_registry.RequestRegistry._set_timers", lambda registry, _living: limits.append(registry)
    )
    limits: list[RequestRegistry] = []
    monkeypatch.setenv("SRB_REQUEST_TIMEOUT", "1")
    assert srb("generate", "p", "-n", "1") == 0
    assert [registry._request_timeout for registry in limits] == [0]


def test_what_the_engine_ends_is_said(srb: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = RequestRegistry.taken

    def abort(registry: RequestRegistry, request_id: str) -> None:
        taken(registry, request_id)
        registry.abort(request_id, 1, "timeout")

    monkeypatch.setattr(RequestRegistry, "taken", abort)
    assert srb("generate", "p", "-n", "2", "--ignore-eos", "--max-tokens", "1000") == 1
    assert srb.err == "srb: alternative 1 was aborted: timeout\n"


@pytest.mark.usefixtures("in_terminal")
def test_no_prompt_at_all(srb: Run) -> None:
    assert srb("generate") == 2
    assert srb.err == "srb: the prompt is missing; add one, or --file FILE, or - to type it\n"


def test_each_alternative_has_the_direction_of_its_option(srb: Run) -> None:
    options = ("--directions", "she lies", "--directions", "slower", "--seed", "0", "--max-tokens", "2")
    assert srb("generate", "Once", *options, "--json") == 0
    start = json.loads(srb.out.splitlines()[0])
    assert (start["labels"], start["count"]) == (["she lies", "slower"], 2)

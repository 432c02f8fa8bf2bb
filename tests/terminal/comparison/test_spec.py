"""What a spec may say."""

from pathlib import Path

import pytest

from srb.errors import SettingsError
from srb.options.settings import Settings
from srb.terminal.comparison.prompts import Prompt
from srb.terminal.comparison.spec import Spec, read_spec


def read(tmp_path: Path, text: str, **settings: int) -> Spec:
    (tmp_path / "spec.toml").write_text(text)
    return read_spec(tmp_path / "spec.toml", Settings(**settings))  # type: ignore[arg-type]


def test_a_whole_spec(tmp_path: Path) -> None:
    (tmp_path / "long.txt").write_text("a long one\n\n")
    text = """
        n = 2
        seeds = [10, 5]
        top_k = 3
        prompts = {short = "p", long = {file = "long.txt"}}
        [settings.usual]
        [settings.wild]
        temperature = 1.5
        n_predict = "9"
        top_k = 0
    """
    spec = read(tmp_path, text, max_tokens=7)
    assert {name: each.text for name, each in spec.prompts.items()} == {"short": "p", "long": "a long one\n"}
    assert spec.settings == {
        "usual": {"max_tokens": 7, "top_k": 3},
        "wild": {"max_tokens": 9, "top_k": 0, "temperature": 1.5},
    }
    assert spec.all_seeds == [5, 6, 10, 11]


def test_the_least_there_may_be(tmp_path: Path) -> None:
    assert read(tmp_path, 'prompts = ["p"]', n=3) == Spec(
        {"1": Prompt({"prompt": "p"}, group="1")}, {"default": {"max_tokens": 128}}, 3, (0,)
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "prompts must be a list of texts, or a table of them, got nothing"),
        ("prompts = [", "is not valid TOML"),
        ("prompts = []", "prompts must be a list of texts, or a table of them, got []"),
        ('prompts = {"" = "p"}', "names in prompts must have 1 to 80 printable characters, got ''"),
        ('prompts = ["p"]\nseeds = [-1]', "seeds must be a whole number from 0 to 4294967288, got -1"),
        ('prompts = ["p"]\nn = 4\nseeds = [9, 7]', "seeds 7 and 9 overlap: with n = 4"),
        ('prompts = ["p"]\nn = 200\nseeds = [1, 1000]', "is 400 alternatives per prompt and setting; the limit is 256"),
        ('prompts = ["p"]\nsampler = 1', "there is no 'sampler'; did you mean samplers?"),
        ('prompts = ["p"]\nsettings = 1', "settings must be tables, such as [settings.wild], got 1"),
        ('prompts = ["p"]\nsettings = {a = 1}', "settings.a must be a table of sampler fields, got 1"),
        ('prompts = ["p"]\nsettings = {a = {label = "x"}}', "settings.a: there is no 'label'"),
        ('prompts = [{system = "s"}]', "prompts.1 must be a text that isn't empty,"),
        ('prompts = [{text = "p", use = "q"}]', "prompts.1: there is no 'use'; did you mean user?"),
        ('prompts = [{user = "q", forks = 2}]', "prompts.1: a chat can't have forks"),
        ('prompts = [{text = "p", forks = 99}]', "prompts.1: forks must be a number of tokens from 0 to 32"),
        (
            'prompts = ["{cty}"]\nvariables = [{city = 1}]',
            "unknown placeholder {cty}; did you mean {city}? Write {{cty}} for braces",
        ),
        ('prompts = ["p"]\nvariables = 5', "variables must be a CSV file with a header and at least one row"),
        (
            'prompts = ["{a}"]\nvariables = [{a = "x", b = 1}, {a = "x", b = 2}]',
            "prompts.1 1 and prompts.1 2 are identical",
        ),
        (
            'prompts = ["{a}"]\nvariables = [{a = "x"}, {b = ""}]',
            "prompts.1 2: unknown placeholder {a}; known names: b",
        ),
        ('prompts = ["p"]\nmodels = 5', "models must be a list of paths, or tables of options, got 5"),
        (
            'prompts = ["p"]\nscorers = {a = {}}',
            "scorers.a must have exactly one of regex, schema, function, judge, siblings, got {}",
        ),
        ('prompts = ["p"]\nscorers = {a = {schema = {type = 5}}}', "scorers.a: schema must be a JSON schema"),
        (
            'prompts = ["p"]\nscorers = {a = {function = "no:no"}}',
            "scorers.a: no:no can't be imported: ModuleNotFoundError",
        ),
        (
            'prompts = ["p"]\nscorers = {a = {function = "json"}}',
            "scorers.a: function must be MODULE:FUNCTION, got 'json'",
        ),
        ('prompts = ["p"]\nscorers = {a = {judge = "Good?"}}', "scorers.a: the judge's prompt must contain {text}"),
        (
            'prompts = ["p"]\nscorers = {a = {judge = "{text}", answers = {a = 1}}}',
            "answers must be at least two texts",
        ),
        (
            'prompts = ["p"]\nscorers = {a = {judge = "{text}", model = "b"}}',
            "scorers.a: model must be one of the spec's models",
        ),
        (
            'prompts = ["p"]\nmodels = {c = "c", d = "d"}\nscorers = {a = {judge = "{text}", model = "b"}}',
            "scorers.a: model: there is no 'b'; known names: c, d",
        ),
        (
            'prompts = ["p"]\nscorers = {a = {judge = "{text}", answers = {1 = 1, 10 = 10}}}',
            "scorers.a: the answer '10' starts with '1', so their first tokens may be the same",
        ),
        ('prompts = ["p"]\nscorers = {a = {schema = 5}}', "scorers.a: schema must be a JSON schema: 5 is not of type"),
        (
            'prompts = ["p"]\n[settings.a]\ntemperature = "hot"',
            "settings.a: temperature: Input should be a valid number",
        ),
        (
            'prompts = ["p"]\n[settings.a]\nrep_pen = 1\nrepeat_penalty = 2',
            "repeat_penalty is given twice, under two names",
        ),
    ],
)
def test_what_is_wrong_is_named_with_its_file_and_key(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(SettingsError, match=r"spec\.toml") as caught:
        read(tmp_path, text)
    assert message in caught.value.message


def test_a_list_fills_a_placeholder_with_commas(tmp_path: Path) -> None:
    spec = read(tmp_path, 'prompts = ["{words}."]\nvariables = [{words = ["red", "blue", 3]}]')
    assert [each.text for each in spec.prompts.values()] == ["red, blue, 3."]


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    text = """
n = 0
seed = [1]
logprobs = 101
prompts = ["", "{a", {file = "nowhere.txt"}, "p", "p", "q", "q"]
[settings.a]
top_p = 2
min_p = nan
tempereture = 1
[settings.b]
top_k = 1
samplers = ["min_p"]
[settings.c]
[settings.d]
[models.x]
ctx = 5
[models.y]
ctx_size = "5"
[models.z]
[scorers.s]
regex = "["
[scorers.length]
regex = "."
[scorers.t]
judge = "{text}{x}"
model = "x"
"""
    with pytest.raises(SettingsError) as caught:
        read(tmp_path, text)
    first, *messages = caught.value.message.split("\n- ")
    assert first == f"{tmp_path / 'spec.toml'}:"
    starts = [
        "the spec: there is no 'seed'",
        "n must",
        "settings.a: top_p",
        "settings.a: min_p",
        "settings.a: there is",
    ]
    starts += ["settings.b: top_k would have", "prompts.1 must be a text", "prompts.3: the file", "models.x: there is"]
    starts += ["models.y: --ctx-size", "scorers.s: regex", "scorers.length is the name of a measure", "logprobs must"]
    starts += ["prompts.4 and prompts.5 are", "prompts.6 and prompts.7 are", "settings.c and settings.d are"]
    starts += ["scorers.t: the judge's prompt: unknown"]
    assert [message[: len(start)] for message, start in zip(messages, starts, strict=True)] == starts


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("v.csv", "", "variables must be a CSV file with a header and at least one row, a JSONL file"),
        ("v.csv", "a,b\n", "variables must be a CSV file with a header and at least one row, a JSONL file"),
        ("v.csv", "a,a\n1,2\n", "variables: v.csv is not CSV: the header repeats 'a'"),
        ("v.csv", "a,b\n1\n", "variables: v.csv is not CSV: row 1 and the header have different lengths"),
        ("v.csv", 'a\n"1\n', "variables: v.csv is not CSV: unexpected end of data"),
        ("v.tsv", "a\tb\n1\t2\n", "v.tsv is not JSONL, the format of files not named *.csv"),
        ("v.jsonl", "[1]\n", "a JSONL file of objects"),
    ],
)
def test_variables_that_cant_be_read(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(SettingsError, match=r"spec\.toml") as caught:
        read(tmp_path, f'prompts = ["{{a}}"]\nvariables = "{name}"')
    assert message in caught.value.message


def test_variables_may_have_any_characters(tmp_path: Path) -> None:
    (tmp_path / "v.csv").write_bytes('\ufeffa,b\r\n"x, ""y""","1\n2"\r\n\r\n{b},é\r\n'.encode())
    spec = read(tmp_path, 'prompts = ["{a}|{b}"]\nvariables = "v.csv"')
    assert [each.text for each in spec.prompts.values()] == ['x, "y"|1\n2', "{b}|é"]
    (tmp_path / "v.jsonl").write_bytes('{"a": "日\u2028", "b": null}\n\n{"a": 1.5, "b": "\\ud83d\\ude00"}'.encode())
    spec = read(tmp_path, 'prompts = ["{a}|{b}"]\nvariables = "v.jsonl"')
    assert [each.text for each in spec.prompts.values()] == ["日\u2028|None", "1.5|😀"]


def test_a_spec_that_isnt_there(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="spec nowhere can't be read: No such file"):
        read_spec(Path("nowhere"), Settings())


def test_directions_are_a_factor_and_alternative_k_of_each_seed_has_direction_k(tmp_path: Path) -> None:
    text = 'prompts = ["p"]\nn = 2\nseeds = [5, 10]\n[settings.plain]\n[settings.led]\ndirections = ["she lies", ""]'
    spec = read(tmp_path, text)
    led = [spec.fields("led", seed) for seed in spec.all_seeds]
    assert led == [{"max_tokens": 128, "direction": each} for each in ("she lies", "", "she lies", "")]
    assert spec.fields("plain", 5) == spec.settings["plain"]
    with pytest.raises(SettingsError, match=r"settings.led: directions has 2, but n is 3; make them agree"):
        read(tmp_path, text.replace("n = 2", "n = 3"))
    with pytest.raises(SettingsError, match=r"settings.led: directions and direction|direction and directions"):
        read(tmp_path, f'{text}\ndirection = "slower"')

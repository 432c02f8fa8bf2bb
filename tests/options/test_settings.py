import argparse
import dataclasses
import functools
from pathlib import Path
from typing import Any

import pytest

from srb.errors import SettingsError
from srb.options.settings import Settings, add_arguments, load_settings, read_keys


@functools.cache
def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser()
    add_arguments(made)
    return made


def load(*flags: str, **environ: str) -> Settings:
    return load_settings(parser().parse_args(flags), environ)


def test_the_defaults() -> None:
    assert load() == Settings()
    assert (Settings().port, Settings().n, Settings().max_n, Settings().ctx_size, Settings().max_tokens) == (
        *(9090, 8, 32, 8192),
        None,
    )


def test_a_flag_wins_over_a_variable_and_that_over_the_file(tmp_path: Path) -> None:
    config = tmp_path / "srb.toml"
    config.write_text('n = 1\nctx-size = 1\nbatch_size = 1\nmodel = "file.gguf"\nn-predict = 7')
    settings = load("--config", str(config), "--n", "3", SRB_N="2", SRB_CTX_SIZE="2")
    model = Path("file.gguf")
    assert settings == Settings(n=3, ctx_size=2, batch_size=1, model=model, max_tokens=7)
    assert load(SRB_CONFIG=str(config)).n == 1


def test_every_option_is_a_flag_and_a_variable() -> None:
    samples = {
        "default_format": "openai",
        "flash_attn": "on",
        "pooling": "mean",
        "cache_type_k": "q8_0",
        "cache_type_v": "q8_0",
        "weights": "bf16",
        "rope_scaling": "yarn",
        "fit": "off",
        "kv_layout": "streams",
        "split_mode": "row",
        "numa": "isolate",
        "share_prompts": "all",
        "log_level": "debug",
    }
    for field in dataclasses.fields(Settings):
        text = samples.get(field.name, "9")
        flags = ["--" + field.name.replace("_", "-"), text]
        if field.name == "jinja":  # --no-jinja is refused
            continue
        if "float" in str(field.type):
            text = "0.5"
            flags[1] = text
        if isinstance(field.default, bool):
            text = str(not field.default)
            flags = [flags[0] if not field.default else flags[0].replace("--", "--no-", 1)]
        by_flag, by_variable = load(*flags), load(**{f"SRB_{field.name.upper()}": text})
        assert str(getattr(by_flag, field.name)) == text
        assert by_flag == by_variable


@pytest.mark.parametrize(
    ("flags", "environ", "expected"),
    [
        ("-m x.gguf -c 512 -b 64", {}, {"model": Path("x.gguf"), "ctx_size": 512, "batch_size": 64}),
        ("-ub 32 -ngl 3 -fa off -t 2", {}, {"ubatch_size": 32, "n_gpu_layers": 3, "flash_attn": "off", "threads": 2}),
        ("--host 127.0.0.1 --host ::1", {}, {"host": "127.0.0.1,::1"}),
        ("--host 127.0.0.1,::1", {}, {"host": "127.0.0.1,::1"}),
        ("", {"SRB_HOST": "127.0.0.1,::1"}, {"host": "127.0.0.1,::1"}),
        ("-c auto", {"SRB_N_GPU_LAYERS": "all"}, {"ctx_size": -1, "n_gpu_layers": -2}),
        ("-ngl auto", {}, {}),
        ("--n-predict 5", {}, {"max_tokens": 5}),
        ("", {"SRB_PREDICT": "6"}, {"max_tokens": 6}),
    ],
)
def test_short_names_names_of_llama_server_and_words_for_numbers(
    flags: str, environ: dict[str, str], expected: dict[str, Any]
) -> None:
    assert load(*flags.split(), **environ) == Settings(**expected)


@pytest.mark.parametrize(
    ("flags", "environ", "message"),
    [
        (["--port", "http"], {}, "--port takes a whole number, got 'http'"),
        (["--rope-freq-base", "high"], {}, "--rope-freq-base takes a number, got 'high'"),
        (["--rope-scale", "0"], {}, "--rope-scale must be more than 0, got 0.0"),
        (["--rope-scale", "2", "--rope-freq-scale", "0.5"], {}, "--rope-scale is the inverse of --rope-freq-scale"),
        (["--split-mode", "rows"], {}, "--split-mode is one of none, layer, row, tensor; got 'rows'"),
        (["--no-jinja"], {}, "--no-jinja isn't supported: all templates of srb are Jinja"),
        (["--port", "65536"], {}, "--port must be 0 to 65535, got 65536"),
        (["--parallel", "256"], {}, "--parallel must be 1 to 255, got 256"),
        (["--ctx-size", "-2"], {}, "--ctx-size must be 0 or more, got -2"),
        (["--ctx-size", "all"], {}, "--ctx-size takes a whole number, or auto, got 'all'"),
        (["--n", "33"], {}, "--n 33 is more than --max-n 32: lower the first or raise the second"),
        (["--flash-attn", "maybe"], {}, "--flash-attn is one of on, off, auto; got 'maybe'"),
        ([], {"SRB_THREADS": "two"}, "SRB_THREADS takes a whole number, got 'two'"),
        ([], {"SRB_EXIT_ON_FATAL": "perhaps"}, "SRB_EXIT_ON_FATAL takes true or false, got 'perhaps'"),
        ([], {"SRB_PROT": "1"}, "SRB_PROT is not an option; did you mean port?; unset it"),
        (["--config", "/nowhere.toml"], {}, "/nowhere.toml can't be read: No such file"),
        (["--ahead", "9", "--max-n", "8", "--n", "1"], {}, "--ahead 9 is more than --max-n 8"),
    ],
)
def test_wrong_values_are_named(flags: list[str], environ: dict[str, str], message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load(*flags, **environ)
    assert message in caught.value.message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("port = true", "port takes a whole number, got True"),
        ("alias = 5", "alias takes a string, got 5"),
        ("ctx-sise = 5", "ctx-sise is not an option; did you mean ctx-size?"),
        ("n = ", "is not valid TOML"),
        ("api-key = 12345", "api-key takes a string, got int"),
    ],
)
def test_wrong_files_are_named(tmp_path: Path, text: str, message: str) -> None:
    config = tmp_path / "srb.toml"
    config.write_text(text)
    with pytest.raises(SettingsError, match=r"srb\.toml") as caught:
        load("--config", str(config))
    assert message in caught.value.message
    assert "12345" not in caught.value.message


def test_keys_come_from_the_option_and_the_file(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_bytes("\nthree\r\n  four, five  \n\nsechs ä\n".encode())
    assert read_keys(Settings()) == ()
    assert read_keys(Settings(api_key="one, two,")) == (b"one", b"two")
    assert read_keys(Settings(api_key="one", api_key_file=file)) == (
        b"one",
        b"three",
        b"four, five",
        "sechs ä".encode(),
    )


def test_no_keys_where_there_should_be_some_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n\n")
    for settings, message in (
        (Settings(api_key=""), "--api-key has no key in it"),
        (Settings(api_key=" , "), "--api-key has no key in it"),
        (Settings(api_key_file=tmp_path / "empty"), "empty has no key in it"),
        (Settings(api_key_file=tmp_path / "none"), "none can't be read: No such file"),
        (Settings(api_key_file=tmp_path), "can't be read: Is a directory"),
    ):
        with pytest.raises(SettingsError, match=message):
            read_keys(settings)


def test_settings_dont_show_the_keys() -> None:
    assert "sk-first" not in repr(Settings(api_key="sk-first"))

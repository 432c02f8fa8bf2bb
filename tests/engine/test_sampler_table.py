"""One table of samplers, and what is written about them elsewhere: a new row that is missing somewhere fails here."""

import dataclasses
import re
from pathlib import Path

import pytest

from srb.engine.samplers import (
    ADAPTIVE_FIELDS,
    KOBOLD_IDS,
    MIROSTAT_FIELDS,
    SAMPLERS,
    TABLE,
    kobold_order,
    sampler_named,
)
from srb.engine.sampling_params import SamplingParams

ROOT = Path(__file__).parents[2]
FIELDS = [name for each in TABLE for name in each.fields]
ALL_FIELDS = {*FIELDS, *MIROSTAT_FIELDS, *ADAPTIVE_FIELDS, "min_keep", "samplers"}


def test_every_field_belongs_to_one_sampler() -> None:
    assert len(set(FIELDS)) == len(FIELDS)
    assert {each.name for each in dataclasses.fields(SamplingParams)} >= ALL_FIELDS


def test_names_and_aliases_are_of_one_sampler() -> None:
    names = [name for each in TABLE for name in (each.name, *each.aliases)]
    assert len(set(names)) == len(names)
    assert [sampler_named(each.name) for each in TABLE] == list(SAMPLERS) == list(SamplingParams().samplers)
    assert (sampler_named("temp"), sampler_named("typical_p"), sampler_named("tfs_z")) == ("temperature", "typ_p", None)


def test_koboldcpps_order_has_every_sampler() -> None:
    assert sorted(kobold_order(KOBOLD_IDS)) == sorted(SAMPLERS)
    assert kobold_order([6, 0, 2, 5]) == (
        *("dry", "top_n_sigma", "penalties", "top_k", "top_p", "min_p", "temperature"),
        "xtc",
    )


def test_llama_cpp_gets_every_sampler() -> None:
    source = (ROOT / "srb" / "llama" / "sampling" / "sampler.py").read_text()
    assert set(re.findall(r'case "(\w+)"', source)) == set(SAMPLERS)


def test_the_page_has_every_field_among_the_settings_of_a_style() -> None:
    guide = (ROOT / "srb" / "web" / "settings" / "guide.js").read_text()
    groups = [
        re.search(rf"  {name}: {{\n(.*?)\n  }},", guide, re.DOTALL) for name in ("sampling", "repetition", "penalties")
    ]
    shown = {name for group in groups if group for name in re.findall(r"^    (\w+): \[", group[1], re.MULTILINE)}
    listed = re.search(r"STYLED = \[(.*?)\.\.\.", guide)
    assert listed
    assert shown | set(re.findall(r'"(\w+)"', listed[1])) == ALL_FIELDS


SECTION = (ROOT / "docs" / "http" / "sampling.md").read_text().partition("## Samplers")[2].partition("\n## ")[0]
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")[:3]] for line in SECTION.splitlines() if line.startswith("| `")
]


NUMBERS = {each.name: each for each in dataclasses.fields(SamplingParams) if each.metadata["range"]}


def written(name: str) -> tuple[str, str]:
    """The range and the default of a number, as the page writes them."""
    low, high = NUMBERS[name].metadata["range"]
    return f"{low} to {high}" if high < 2**31 - 1 else f"{low} and up", f"{NUMBERS[name].default:g}"


def test_the_documentation_has_every_field() -> None:
    named = {name for fields, _, _ in ROWS for name in re.findall(r"`(\w+)`", fields)}
    assert named >= ALL_FIELDS
    assert named - ALL_FIELDS <= {each.name for each in dataclasses.fields(SamplingParams)} | {"banned_tokens"}
    samplers = next(line for line in SECTION.splitlines() if line.startswith("| `samplers`"))
    assert ", ".join(f"`{name}`" for name in SAMPLERS) in samplers


@pytest.mark.parametrize("row", [row for row in ROWS if set(re.findall(r"`(\w+)`", row[0])) <= NUMBERS.keys()])
def test_the_documentation_has_the_ranges_and_defaults_of_numbers(row: list[str]) -> None:
    ranges, defaults = zip(*(written(name) for name in re.findall(r"`(\w+)`", row[0])), strict=True)
    for cell, wanted in zip(row[1:], (ranges, defaults), strict=True):
        assert cell.split(", ") in ([*wanted], [*dict.fromkeys(wanted)])

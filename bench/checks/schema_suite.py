"""Check the schemas that `json_schema` accepts, and their texts, against JSON-Schema-Test-Suite and `jsonschema`.

usage: python bench/checks/schema_suite.py SUITE [--texts 200] [--model MODEL.gguf] [--only TEXT]

SUITE is the suite's folder `tests`; the source package of jsonschema has it as json/tests (pip download --no-deps
--no-binary :all: jsonschema). The program needs jsonschema[format-nongpl]: without it some formats aren't validated.

For each accepted schema, texts are sampled from random logits, with the sampler of a request. Each text that has ended
must be JSON that matches the schema, with numbers as exact decimals. Values that the suite marks as invalid must be
impossible. If `jsonschema` contradicts the suite's own values for a schema, `jsonschema_rs` validates instead. The
program prints a table of the drafts, the reasons for refusals, and each failure as it is found. It exits with 1 if
there is a failure.
"""

import argparse
import collections
import json
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
from schema_writer import Writer, judge_of
from tiny_model import write_tiny_model

from srb import InvalidRequestError

DRAFTS = {
    "draft4": jsonschema.Draft4Validator,
    "draft6": jsonschema.Draft6Validator,
    "draft7": jsonschema.Draft7Validator,
    "draft2019-09": jsonschema.Draft201909Validator,
    "draft2020-12": jsonschema.Draft202012Validator,
}


def cases(suite: Path, draft: str, only: str) -> Iterator[tuple[str, Any, list[dict[str, Any]]]]:
    for path in sorted((suite / draft).rglob("*.json")):
        for case in json.loads(path.read_text()):
            name = f"{path.relative_to(suite)}: {case['description']}"
            schema = case["schema"]
            if isinstance(schema, dict):  # a schema without `$schema` would count as the newest draft
                schema = {"$schema": DRAFTS[draft].META_SCHEMA.get("$schema")} | schema
            if only in name and "optional/content" not in name:
                yield name, schema, case["tests"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", type=Path)
    parser.add_argument("--texts", type=int, default=200, help="texts for each schema")
    parser.add_argument("--model", type=Path, help="whose tokens are used; left out: a vocabulary of bytes")
    parser.add_argument("--only", default="", help="only schemas whose name has this text in it")
    options = parser.parse_args()
    refused: collections.Counter[str] = collections.Counter()
    n_failures = 0
    with tempfile.TemporaryDirectory() as folder:
        writer = Writer(options.model or write_tiny_model(Path(folder) / "tiny.gguf"))
        print("| draft | schemas | taken | texts | cut | valid values possible | failures |")
        print("|---|---|---|---|---|---|---|")
        for draft, validator in DRAFTS.items():
            count: collections.Counter[str] = collections.Counter()
            for name, schema, tests in cases(options.suite, draft, options.only):
                count["schemas"] += 1
                try:
                    texts = list(writer.texts(schema, options.texts))
                except InvalidRequestError as error:
                    refused[reason(error.message)] += 1
                    continue
                count["taken"] += 1
                matches = judge_of(schema, validator, tests)
                cut = texts.count(None)
                count["cut"] += cut
                count["texts"] += len(texts) - cut
                failures = [f"{text!r:.200} doesn't match" for text in texts if text is not None and not matches(text)]
                for test in tests:
                    text = json.dumps(test["data"], ensure_ascii=False)
                    possible = writer.can_write(schema, text)
                    count["valid"] += test["valid"]
                    count["possible"] += test["valid"] and possible
                    if possible and not test["valid"]:
                        failures.append(f"{text:.200} is possible, but the suite calls it invalid")
                count["failures"] += len(failures)
                for failure in failures[:3]:
                    print(f"{name}: {failure}", file=sys.stderr)
            n_failures += count["failures"]
            print(
                f"| {draft} | {count['schemas']} | {count['taken']} | {count['texts']} | {count['cut']} "
                f"| {count['possible']} of {count['valid']} | {count['failures']} |",
                flush=True,
            )
        writer.backend.close()
    print("\n| refused for | schemas |\n|---|---|")
    for why, n in refused.most_common():
        print(f"| {why} | {n} |")
    sys.exit(n_failures > 0)


def reason(message: str) -> str:
    """Return the reason of a refusal, without the details of a single schema."""
    message = message.removeprefix("json_schema can't be enforced: ").partition("; leave that out")[0]
    if keywords := re.search(r"Unimplemented keys: \[(.*)\]", message):
        return (
            f"`{keywords[1].split(', ')[0].strip(chr(34))}`"
            if keywords[1].count(",") == 0
            else keywords[1].replace('"', "`")
        )
    return re.sub(r"'[^']+'|/\S+/|: .*|Some\S+| got .*| is -?\d\S+;.*", " ...", message)[:80]


if __name__ == "__main__":
    main()

"""examples/promptfoo: its own tests in Node, and its provider on a server with the fake backend."""

import asyncio
import json
import os
import shutil
from pathlib import Path

import pytest
from fake_backend import FakeBackend, says
from server.conftest import Connect

FOLDER = Path(__file__).parents[3] / "examples" / "promptfoo"
NODE = shutil.which("node")

REPEATS = """
const { default: Provider } = await import(process.argv[1]);
const provider = new Provider({ config: { url: process.argv[2], max_tokens: 4, seed: 1 } });
const call = (prompt, k) =>
  provider.callApi(prompt, { vars: { __repeatIndex: k }, prompt: {}, test: { options: { repeat: 8 } } });
const calls = ["Once", "Twice"].flatMap((prompt) => [0, 1, 2, 3, 4, 5, 6, 7].map((k) => call(prompt, k)));
console.log(JSON.stringify(await Promise.all(calls)));
"""


async def node(*command: str) -> str:
    """Run Node, which must succeed. Skip the test if Node isn't there, unless this is CI."""
    if not NODE:
        assert not os.environ.get("CI"), "CI installs Node, but it isn't there"
        pytest.skip("the provider is written for Node, which isn't installed: apt install nodejs")
    process = await asyncio.create_subprocess_exec(
        NODE, *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    output = (await process.communicate())[0].decode()
    assert process.returncode == 0, output
    return output


@pytest.mark.starts
async def test_it_passes_its_own_tests() -> None:
    assert "# fail 0" in await node("--test-reporter=tap", "--test", str(FOLDER / "provider.test.mjs"))


@pytest.mark.starts
async def test_eight_repeats_evaluate_each_prompt_once(connect: Connect) -> None:
    client = await connect(FakeBackend(n_cells=4096, script=says(b"abcdefgh")))
    url = str(client.make_url("")).rstrip("/")
    answers = json.loads(await node("--input-type=module", "--eval", REPEATS, str(FOLDER / "provider.mjs"), url))
    health = await (await client.get("/health")).json()
    assert [each.get("error") for each in answers] == [None] * 16
    assert [each["metadata"]["seed"] for each in answers] == [*range(1, 9)] * 2
    assert health["prompt_tokens"] == health["prompt_tokens_evaluated"] == len("Once") + len("Twice")
    assert sum(each["tokenUsage"]["prompt"] for each in answers) == health["prompt_tokens"]
    assert sum(each["tokenUsage"]["completion"] for each in answers) == health["tokens_generated"] == 64

"""Stories whose alternatives are healed: the text of the token that was taken back is there once, whatever happens."""

from pathlib import Path
from typing import Any

import pytest
from engine.test_token_healing import backend
from fake_backend import Context
from server.conftest import Connect
from server.run.test_history_service import begin, get, go_on, run, snapshot_at, texts

from srb.engine.sampling_params import SamplingParams
from srb.history.history import History
from srb.history.stories import prompt_at
from srb.server.http.exchange import ENGINE

TYPED = "She saw "


async def nodes(client: Any, story: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await get(client, f"/v1/stories/{story}"))["nodes"]
    return found


def script(params: SamplingParams, tokens: Context) -> int:
    """Letters, so that the text of the first token is a space and a letter."""
    return ord("a") + (params.seed + len(tokens)) % 26


@pytest.mark.parametrize("options", [{}, {"logprobs": 2, "return_tokens": True}])
async def test_what_goes_on_from_them_has_their_text_once(
    connect: Connect, tmp_path: Path, options: dict[str, Any]
) -> None:
    with History(tmp_path / "history.db", keep_seconds=900) as history:
        client = await connect(made := backend(script=script), history=history)
        path = snapshot_at(made, history, 7)
        story = await begin(client, {"id": 1, "text": TYPED})
        body = {"story": story, "node": 1, "n": 2, "max_tokens": 12, "seed": 0, "ignore_eos": True, "heal": True}
        request_id, undisturbed = await run(client, **body, detach=True, **options)
        said = texts(undisturbed)
        assert all(each and not each[0].isspace() for each in said.values()), "the space was taken back"
        first, second = (await nodes(client, story))[1:]
        assert [first["text"], second["text"]] == [said[0], said[1]]
        assert (first["tokens"], first["settings"]["heal"]) == (None, True), "the first token is more than its text"
        assert history.read(prompt_at, None, story, first["id"]) == [TYPED + said[0]]
        answer = await client.get(f"/v1/stories/{story}?format=markdown&node={second['id']}")
        assert (await answer.text()).endswith(f"\n\n{TYPED}{said[1]}\n")
        _, events = await run(client, story=story, node=first["id"], n=1, max_tokens=0)
        assert events[0][1]["prompt_tokens"] == len(TYPED + said[0])
        copy = await client.post("/v1/stories", json=await get(client, f"/v1/stories/{story}"))
        copied = (await copy.json())["id"]
        assert history.read(prompt_at, None, copied, first["id"]) == [TYPED + said[0]]
    with History(path, keep_seconds=900) as history:
        again = await connect(backend(script=script), history=history)
        await go_on(again, goes_on=True)
        async with again.get(f"/v1/completions/{request_id}/events") as answer:
            await answer.read()
        assert [each["text"] for each in (await nodes(again, story))[1:3]] == [said[0], said[1]]
        await again.app[ENGINE].stop()

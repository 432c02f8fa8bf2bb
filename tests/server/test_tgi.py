"""The routes of Text Generation Inference, with what huggingface_hub sends. On the fake backend."""

import json
from typing import Any

from fake_backend import FakeBackend, says
from server.conftest import Client, Connect

HUB: dict[str, Any] = {
    "inputs": "upon",
    "parameters": {"details": True, "do_sample": True, "max_new_tokens": 4, "seed": 0, "watermark": False},
    "stream": False,
}


def backend(*texts: bytes, **options: Any) -> FakeBackend:
    return FakeBackend(n_cells=4096, script=says(*texts, prompt=4), **options)


async def posted(client: Client, path: str, parameters: dict[str, Any], status: int = 200, **body: Any) -> Any:
    body = HUB | {"parameters": HUB["parameters"] | parameters} | body
    response = await client.post(path, json=body)
    answer = await response.json()
    assert response.status == status, answer
    return answer


async def chunks(client: Client, path: str, parameters: dict[str, Any], **body: Any) -> list[dict[str, Any]]:
    body = HUB | {"parameters": HUB["parameters"] | parameters} | body
    response = await client.post(path, json=body)
    assert response.status == 200, await response.text()
    *blocks, end = (await response.text()).split("\n\n")
    assert end == ""
    return [json.loads(block.removeprefix("data: ")) for block in blocks]


async def test_an_object_and_one_in_a_list(connect: Connect) -> None:
    client = await connect(backend(b"ab"))
    answer = await posted(client, "/generate", {"top_n_tokens": 2})
    details = answer["details"]
    assert answer["generated_text"] == "ab"
    assert (details["finish_reason"], details["generated_tokens"], details["seed"]) == ("eos_token", 3, 0)
    assert [(each["id"], each["text"], each["special"]) for each in details["tokens"]] == [
        (97, "a", False),
        (98, "b", False),
        (256, "<END>", True),
    ]
    assert [len(each) for each in details["top_tokens"]] == [2, 2, 2]
    assert details["prefill"] == []
    assert await posted(client, "/", {"details": False}) == [{"generated_text": "ab"}]
    answer = await posted(client, "/generate", {"decoder_input_details": True, "return_full_text": True})
    assert answer["generated_text"] == "uponab"
    assert [each["text"] for each in answer["details"]["prefill"]] == list("upon")
    assert len(answer["details"]["tokens"]) == 3
    answer = await posted(client, "/generate", {"decoder_input_details": True, "max_new_tokens": 1})
    assert (answer["generated_text"], answer["details"]["finish_reason"]) == ("a", "length")


async def test_a_stream_has_a_token_in_each_event(connect: Connect) -> None:
    client = await connect(backend("aé\nb".encode()))
    for path, body in (("/generate_stream", {}), ("/generate", {"stream": True}), ("/", {"stream": True})):
        parts = await chunks(client, path, {"stop": ["\n"], "max_new_tokens": 9, "return_full_text": True}, **body)
        assert [each["index"] for each in parts] == [1, 2, 3, 4]
        assert "".join(each["token"]["text"] for each in parts) == "aé"
        assert [each["token"]["id"] for each in parts] == [97, 195, 169, 10]
        assert [each["generated_text"] for each in parts] == [None, None, None, "uponaé"]
        ended = {"finish_reason": "stop_sequence", "generated_tokens": 4, "seed": 0, "input_length": 4}
        assert parts[-1]["details"] == ended


async def test_best_of_shows_the_others(connect: Connect) -> None:
    client = await connect(backend(b"ab", b"cd"))
    details = (await posted(client, "/generate", {"best_of": 2}))["details"]
    (other,) = details["best_of_sequences"]

    def mean(sequence: dict[str, Any]) -> float:
        values: list[float] = [each["logprob"] for each in sequence["tokens"]]
        return sum(values) / len(values)

    assert {details["seed"], other["seed"]} == {0, 1}
    assert mean(details) > mean(other)
    assert other["generated_text"] == {0: "ab", 1: "cd"}[other["seed"]]


async def test_settings_are_mapped(connect: Connect) -> None:
    served = backend(b"ab")
    client = await connect(served)
    given: list[Any] = []
    sampler = served.sampler
    served.sampler = lambda params, *rest: given.append(params) or sampler(params, *rest)  # type: ignore[method-assign,func-returns-value]
    schema = {"type": "integer"}
    await posted(client, "/generate", {"do_sample": False, "repetition_penalty": 1.2})
    await posted(client, "/generate", {"do_sample": False, "top_k": 3})
    await posted(client, "/generate", {"grammar": {"type": "json", "value": schema}, "typical_p": 0.5})
    await posted(client, "/generate", {"grammar": {"type": "json_schema", "value": {"name": "x", "schema": schema}}})
    await posted(client, "/generate", {"grammar": "root ::= [a-z]", "details": False})
    await posted(client, "/generate", {"grammar": {"type": "regex", "value": "a+"}})
    assert [each.temperature for each in given] == [0, 0.8, 0.8, 0.8, 0.8, 0.8]
    assert (given[0].repeat_penalty, given[1].top_k, given[2].typical_p) == (1.2, 3, 0.5)
    assert [each.json_schema for each in given] == [None, None, json.dumps(schema), json.dumps(schema), None, None]
    assert (given[4].grammar, given[5].regex) == ("root ::= [a-z]", "a+")
    parameters = {"truncate": 2, "adapter_id": "x", "decoder_input_details": True}
    response = await client.post("/generate_stream", json={"inputs": "upon", "parameters": parameters})
    assert response.headers["x-srb-ignored"] == "parameters.adapter_id, parameters.decoder_input_details"
    last = json.loads((await response.text()).split("\n\n")[-2].removeprefix("data: "))
    assert last["details"]["input_length"] == 2


async def test_errors_are_in_its_own_shape(connect: Connect) -> None:
    client = await connect(backend(b"ab"))
    bad: list[tuple[str, dict[str, Any], str]] = [
        ("/generate", {"max_new_tokens": 0}, "parameters.max_new_tokens"),
        ("/generate", {"best_of": 9}, "from 1 to 8"),
        ("/generate", {"best_of": 2, "do_sample": False}, "all would be the same"),
        ("/generate_stream", {"best_of": 2}, "one alternative"),
        ("/generate", {"grammar": {"type": "regex", "value": 5}}, '"regex", "value": TEXT'),
        ("/generate", {"truncate": 0}, "parameters.truncate"),
        ("/", {"top_p": 2}, "top_p"),
    ]
    for path, parameters, expected in bad:
        answer = await posted(client, path, parameters, 400)
        assert expected in answer["error"]
        assert answer["error_type"] == "validation"
    client = await connect(FakeBackend(fail_decodes={1, 2}))
    answer = await posted(client, "/generate", {}, 500)
    assert answer["error_type"] == "generation"
    client = await connect(FakeBackend(fail_decodes={1, 2}))
    fault, last = await chunks(client, "/generate_stream", {})
    assert fault["error_type"] == "generation"
    assert (last["token"]["text"], last["details"]["generated_tokens"]) == ("", 0)
    client = await connect(backend(b"ab"), api_keys=(b"key",))
    answer = await posted(client, "/", {}, 401)  # the page at the same path is open
    assert set(answer) == {"error", "error_type"}


async def test_info(connect: Connect) -> None:
    client = await connect(backend(b""))
    info = await (await client.get("/info")).json()
    assert (info["model_id"], info["max_best_of"], info["max_total_tokens"]) == ("fake", 8, 4096)

"""Compare greedy chats and log-probabilities of srb and llama-server, each against the model's weights in 32 bits.

usage: python bench/checks/same_scores.py --binaries FOLDER_OF_LLAMA_SERVER [MODEL.gguf]

Quantized weights are multiplied with activations that are rounded to 8 bits. Differences in the last digits, such as
those between two attention kernels, are therefore amplified, and greedy texts differ where two tokens are nearly as
likely. With weights, KV cache and arithmetic in 32 bits nothing is amplified, and both servers must agree. The program
fails if they don't. For each server it prints how far the ten likeliest first tokens are from these values.
"""

import argparse
import ctypes
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import llama_cpp

from srb.llama.model.model_file import find_model
from srb.llama.native import library

COUNTRIES = (
    "France",
    "Italy",
    "Spain",
    "Japan",
    "Peru",
    "Egypt",
    "Kenya",
    "Norway",
    "Chad",
    "Canada",
    "Turkey",
    "Chile",
)
EXACT = ("-ctk", "f32", "-ctv", "f32", "-fa", "off")
MOST = 0.001
"""The largest difference in 32 bits: llama-server adds up the vocabulary's probabilities in 32 bits, srb in 64."""

Answers = list[tuple[dict[int, float], str]]


def main() -> None:
    """Print a row for each server."""
    parser = argparse.ArgumentParser(description="Do srb and llama-server compute the same?")
    parser.add_argument("model", nargs="?", type=Path)
    parser.add_argument("--binaries", type=Path, required=True, help="the folder of llama-server")
    arguments = parser.parse_args()
    model = find_model(arguments.model).absolute()
    srb = [sys.executable, "-m", "srb", "serve", "--weights", "file"]
    llama_server = [str(arguments.binaries.absolute() / "llama-server"), "-np", "1", "-c", "4096"]
    with tempfile.TemporaryDirectory() as folder:
        exact = Path(folder) / "f32.gguf"
        in_32_bits(model, exact)
        truth = ask([*llama_server, *EXACT], exact)
        rows = {
            "llama-server, 32 bits": truth,
            "srb, 32 bits": ask([*srb, *EXACT], exact),
            "llama-server": ask(llama_server, model),
            "llama-server -fa off": ask([*llama_server, "-fa", "off"], model),
            "srb --weights file -fa off": ask([*srb, "-ctk", "f16", "-ctv", "f16", "-fa", "off"], model),
            "srb": ask(srb[:-2], model),
        }
    print("", "mean difference", "largest", "same chats", sep="\t")
    for name, answers in rows.items():
        mean, largest, same = distance(truth, answers)
        print(name, f"{mean:.5f}", f"{largest:.5f}", f"{same} of {len(truth)}", sep="\t")
    _, largest, same = distance(truth, rows["srb, 32 bits"])
    if largest > MOST or same < len(truth):
        raise SystemExit("srb and llama-server differ in 32 bits")


def in_32_bits(model: Path, target: Path) -> None:
    """Write the model with all weights as 32-bit floating-point numbers."""
    library.redirect()
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype, params.allow_requantize = llama_cpp.LLAMA_FTYPE_ALL_F32, True
    if llama_cpp.llama_model_quantize(os.fsencode(model), os.fsencode(target), ctypes.byref(params)):
        raise SystemExit(f"{model} can't be converted to 32 bits")


def ask(command: list[str], model: Path) -> Answers:
    """Start a server. Return the likeliest first tokens and the greedy text of each chat."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
    command = [*command, "-m", str(model), "--port", url.rpartition(":")[2]]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            while not is_ready(url):
                if server.poll() is not None:
                    raise SystemExit(f"{' '.join(command)} ended with {server.returncode}")
                time.sleep(0.1)
            return [chat(url, country) for country in COUNTRIES]
        finally:
            server.terminate()


def is_ready(url: str) -> bool:
    """Return whether the server has loaded its model."""
    try:
        with urllib.request.urlopen(url + "/health") as response:
            return bool(response.status == 200)
    except OSError:
        return False


def chat(url: str, country: str) -> tuple[dict[int, float], str]:
    """Ask for a capital. Return the log-probabilities of the first token, and the text."""
    solved = "Question: What is the capital of Germany?\nAnswer: Berlin\n\n"
    question = f"{solved}Question: What is the capital of {country}?\nAnswer:"
    prompt = post(url + "/apply-template", messages=[{"role": "user", "content": question}])["prompt"]
    tokens = post(url + "/tokenize", content=prompt, parse_special=True)["tokens"]
    answer = post(url + "/completion", prompt=tokens, n_predict=12, n_probs=50, temperature=0, cache_prompt=False)
    top = answer["completion_probabilities"][0]["top_logprobs"]
    return {token["id"]: token["logprob"] for token in top}, answer["content"]


def post(url: str, **body: Any) -> Any:
    """Send a JSON body and return the answer."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)


def distance(truth: Answers, answers: Answers) -> tuple[float, float, int]:
    """Return the mean and largest difference of the ten likeliest tokens, and how many texts are the same."""
    differences, same = [], 0
    for (expected, text), (found, its_text) in zip(truth, answers, strict=True):
        likeliest = sorted(expected, key=lambda token: expected[token])[-10:]
        differences += [abs(expected[token] - found[token]) for token in likeliest if token in found]
        same += text == its_text
    return statistics.mean(differences), max(differences), same


if __name__ == "__main__":
    main()

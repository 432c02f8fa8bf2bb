"""Compare srb with llama-server of the same llama.cpp: `./build.sh bench [--quick]` builds the peers and runs this.

All servers run at once and receive requests in turn, so a machine that slows down affects all alike. Medians are
compared. Every repetition has a text of its own, the same for all servers, so no server has cached a text.

srb runs with the result of `srb tune`. llama-server runs on the original file with flash attention on and off, and once
with the tuned weights, cache and flash attention. The goals compare srb with the better of the two runs on the file.
Two models with random weights represent other models: one in Q4_K_M, and one with a vocabulary as large as Gemma's.

The program writes comparison.json, comparison.md and comparison.svg into docs/figures/ or --folder; without --quick
also growth.svg.
"""

import argparse
import asyncio
import importlib.metadata
import json
import os
import platform
import random
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import llama_cpp
from models import K_QUANTS, LARGE, LARGE_VOCABULARY, random_model
from peers import Answer, Peer, Server, running

from srb.llama.model.model_file import find_model
from srb.llama.native.params import physical_cores
from srb.llama.tune.result import choose
from srb.options.settings import Settings

ROOT = Path(__file__).parents[2]
WORDS = re.findall(r"\w+", "".join(path.read_text() for path in sorted(ROOT.glob("srb/**/*.py"))))
CELLS = 8192
TOKENS_PER_WORD = 1.36  # for this program's texts, with the default model
PROMPT_TOKENS = int(400 * TOKENS_PER_WORD)
THOUGHT = 0.2  # seconds before a prompt is sent again
CEILINGS = {f"A: n = {n}": n for n in (1, 8, 32)}
OTHER_MODELS = {"L: Q4_K_M, 16 layers of 1,024": K_QUANTS, "M: 262,144 tokens in the vocabulary": LARGE_VOCABULARY}
ON_A_CARD = {"N: Q8_0, as large as Llama 3 8B": LARGE}
GROWING_N = (1, 4, 16, 64)  # with 400 words
GROWING_WORDS = (40, 400, 1200, 3600)  # with n = 8
SRB = Peer("srb", True, ("--max-n", "64", "--parallel", "64", "--log-level", "error"))
LLAMA_SERVERS = (
    Peer("llama-server", False, ("-np", "64", "-kvu")),
    Peer("llama-server -fa off", False, ("-np", "64", "-kvu", "-fa", "off")),
)
"""llama-server needs -np for more than four alternatives, and then -kvu to use its whole context for one prompt."""

TUNED = "llama-server, tuned"
ON_THE_FILE = tuple(peer.name for peer in LLAMA_SERVERS)
GOALS = {
    ("A: n = 1", "all"): 0.75,
    ("A: n = 1", "first"): 0.5,
    ("A: n = 8", "all"): 0.6,
    ("A: n = 8", "first"): 0.5,
    ("A: n = 32", "all"): 0.5,
    ("A: n = 32", "first"): 0.5,
    ("C: eight clients, the same prompt", "all"): 0.15,
    ("D: eight clients, the same but for 20 words", "all"): 0.15,
    ("F: 1,200 words, n = 32", "all"): 0.5,
    ("G: 20 words, n = 8, 256 tokens", "all"): 0.75,
    ("H: 16 clients", "tokens/s"): 1.8,
    ("H: 16 clients", "first, p99"): 0.7,
    ("J: 3600 words", "all"): 0.7,
    ("K: cold start", "first"): 1.5,
}
"""srb's number divided by that of the better llama-server on the file: at most this, or at least this for tokens/s."""

Numbers = dict[str, float]
Results = dict[str, dict[str, list[Numbers]]]  # the numbers of each repetition, by scenario and server
Scenario = Callable[[Server, int], Awaitable[Numbers]]


def text(words: int, seed: int) -> str:
    """Return a text of this many words. No other seed has these words in this order."""
    return " ".join(random.Random(seed).choices(WORDS, k=words))


def numbers(answers: list[Answer]) -> Numbers:
    """Return the measurements of requests that were sent together."""
    start = min(answer.sent for answer in answers)
    first = [answer.sent - start + each for answer in answers for each in answer.first.values()]
    end = max(answer.sent - start + answer.end for answer in answers)
    tokens = sum(answer.tokens for answer in answers)
    return {"first": min(first), "last first": max(first), "all": end, "tokens/s": tokens / end}


def alternatives(n: int, words: int = 400, max_tokens: int = 64) -> Scenario:
    """Send one request with n alternatives."""

    async def scenario(server: Server, seed: int) -> Numbers:
        answer = await server.ask(text(words, seed), n, max_tokens)
        result = numbers([answer])
        del result["last first"]  # all of them start at once
        decoding = answer.end - max(answer.first.values())
        result["decode tokens/s"] = (answer.tokens - n) / decoding if decoding else 0
        return result

    return scenario


async def alternatives_of_tokens(server: Server, n: int) -> Numbers:
    """Send one request with n alternatives of 512 token ids. For these models a word is many tokens."""
    prompt = random.Random(n).choices(range(100), k=512)
    return numbers([await server.ask(prompt, n, 64)])


async def same_prompt(server: Server, seed: int) -> Numbers:
    """Run eight clients with the same prompt."""
    prompt = text(400, seed)
    return numbers(await asyncio.gather(*(server.ask(prompt, seed=k) for k in range(8))))


async def shared_beginning(server: Server, seed: int) -> Numbers:
    """Run eight clients whose prompts differ in their last 20 words."""
    prompts = [f"{text(380, seed)}\n{text(20, 1000 * seed + k)}" for k in range(8)]
    return numbers(await asyncio.gather(*(server.ask(prompt) for prompt in prompts)))


async def shared_beginning_as_list(server: Server, seed: int) -> Numbers:
    """Send the prompts of `shared_beginning` as a list in one request."""
    prompts = [f"{text(380, seed)}\n{text(20, 1000 * seed + k)}" for k in range(8)]
    return numbers([await server.ask(prompts)])


async def again(server: Server, seed: int) -> Numbers:
    """Repeat a prompt, then continue an answer, then fork in the middle of another one, with short pauses."""
    prompt = text(400, seed)
    before = await server.ask(prompt, 4, 32)
    await asyncio.sleep(THOUGHT)
    repeated = await server.ask(prompt, 4, 32, seed=2)
    await asyncio.sleep(THOUGHT)
    continued = await server.ask(f"{prompt}{before.texts[1]}\nAnd then", 4, 32)
    await asyncio.sleep(THOUGHT)
    forked = await server.ask(f"{prompt}{before.texts[2][: len(before.texts[2]) // 2]}", 4, 32)
    names = {"regenerate": repeated, "continue": continued, "fork in the middle": forked}
    return {"new": min(before.first.values())} | {name: min(each.first.values()) for name, each in names.items()}


def mixed_load(seconds: float) -> Scenario:
    """Run sixteen clients that send one request after another."""

    async def scenario(server: Server, seed: int) -> Numbers:
        start, answers = time.perf_counter(), list[Answer]()

        async def client(number: int) -> None:
            rng = random.Random(1000 * seed + number)
            while time.perf_counter() - start < seconds:
                words, n = rng.choice([20, 100, 400]), rng.choice([1, 1, 2, 4])
                answers.append(await server.ask(text(words, rng.randrange(10**9)), n, rng.choice([16, 64])))

        await asyncio.gather(*(client(number) for number in range(16)))
        took = time.perf_counter() - start
        first = [each for answer in answers for each in answer.first.values()]
        gaps = [gap for answer in answers for gap in answer.gaps]
        return {
            "tokens/s": sum(answer.tokens for answer in answers) / took,
            "first, p50": _percentile(first, 50),
            "first, p99": _percentile(first, 99),
            "between tokens, p50": _percentile(gaps, 50),
            "between tokens, p99": _percentile(gaps, 99),
        }

    return scenario


def _percentile(values: list[float], percent: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def with_memory(scenario: Scenario) -> Scenario:
    """Return the scenario with the server's peak memory among its numbers."""

    async def measured(server: Server, seed: int) -> Numbers:
        server.forget_peak()
        result = await scenario(server, seed)
        return result | {"peak memory, MiB": server.peak_memory()}

    return measured


def scenarios(quick: bool) -> dict[str, tuple[Scenario, int]]:
    """Return the scenarios by name, each with the number of its repetitions."""
    few = 1 if quick else 3
    result: dict[str, tuple[Scenario, int]] = {
        **{name: (alternatives(n), few) for name, n in CEILINGS.items()},
        "C: eight clients, the same prompt": (same_prompt, few),
        "D: eight clients, the same but for 20 words": (shared_beginning, few),
        "E: the same prompt again": (again, few),
        "F: 1,200 words, n = 32": (with_memory(alternatives(32, 1200)), few),
        "G: 20 words, n = 8, 256 tokens": (alternatives(8, 20, 256), few),
        "H: 16 clients": (mixed_load(10 if quick else 60), 1 if quick else 2),
    }
    if not quick:
        result["D: the same as a list"] = (shared_beginning_as_list, few)
        result |= {f"J: n = {n}": (with_memory(alternatives(n, 400, 32)), 2) for n in GROWING_N}
        result |= {f"J: {words} words": (with_memory(alternatives(8, words, 32)), 2) for words in GROWING_WORDS}
    else:
        result["J: 3600 words"] = (with_memory(alternatives(8, 3600, 32)), 1)
    return result


async def cold_start(peer: Peer, model: Path, threads: int, binaries: Path) -> Numbers:
    """Return the seconds from the start of the process to the first token."""
    start = time.perf_counter()
    async with running(peer, model, CELLS, threads, binaries) as server:
        await server.ask("Once upon a time,", 1, 1)
        return {"first": time.perf_counter() - start}


async def ceiling(n: int, model: Path, threads: int, binaries: Path) -> Numbers:
    """Return the tokens/s that llama-batched-bench decodes without samplers and HTTP, by flash attention on and off."""
    result = {}
    for flash_attn in ("on", "off"):
        process = await asyncio.create_subprocess_exec(
            *(str(binaries / "llama-batched-bench"), "-m", str(model), "-t", str(threads), "-c", str(CELLS)),
            *("-b", "2048", "-ub", "512", "-pps", "-kvu", "-fa", flash_attn),
            *("-npp", str(PROMPT_TOKENS), "-ntg", "64", "-npl", str(n)),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        printed, _ = await asyncio.wait_for(process.communicate(), 600)
        rows = [line for line in printed.decode().splitlines() if line.startswith("|")]
        if process.returncode or not rows:
            raise RuntimeError(f"llama-batched-bench ended with {process.returncode} and printed {len(rows)} rows")
        result[flash_attn] = float(rows[-1].split("|")[8])  # S_TG t/s
    return result


def peers_of(model: Path) -> list[Peer]:
    """Return srb, llama-server on the original file, and llama-server with the settings of `srb tune`."""
    choice = choose(model, Settings())
    paces = choice.cost_model or choice.machine_costs
    flash_attn = paces.preferred if paces else choice.settings.flash_attn
    cache = ("-ctk", str(choice.settings.cache_type_k), "-ctv", str(choice.settings.cache_type_v))
    tuned = Peer(TUNED, False, ("-np", "64", "-kvu", "-fa", flash_attn, *cache, "-m", str(choice.weights)))
    # A GPU is slower without flash attention, and llama-server may crash there in scenario F.
    plain = LLAMA_SERVERS[:1] if _card() else LLAMA_SERVERS
    return [SRB, *plain, tuned]


async def measure(
    model: Path, threads: int, binaries: Path, quick: bool, others: dict[str, str], only: str = ""
) -> tuple[Results, dict[str, list[Numbers]]]:
    """Return the numbers of all repetitions by scenario and server, and the ceilings, measured in turn with A.

    Args:
        others: the kinds of the other models, by the names of their scenarios.
        only: the letters of some scenarios, or nothing for all.
    """
    results: Results = {}
    ceilings: dict[str, list[Numbers]] = {}
    peers = peers_of(model)
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(running(peer, model, CELLS, threads, binaries)) for peer in peers]
        for server in servers:
            await server.ask(text(50, 0), 2, 4)
        for number, (name, (scenario, repetitions)) in enumerate(scenarios(quick).items()):
            if only and name[0] not in only:
                continue
            for repetition in range(repetitions):
                first = repetition % len(servers)  # the first server may have an advantage
                for server in (*servers[first:], *servers[:first]):
                    found = await scenario(server, 100 * number + repetition + 1)
                    results.setdefault(name, {}).setdefault(server.peer.name, []).append(found)
                    print(f"{name}, {server.peer.name}: {found}", file=sys.stderr, flush=True)
                if name in CEILINGS:
                    found = await ceiling(CEILINGS[name], model, threads, binaries)
                    ceilings.setdefault(name, []).append(found)
                    print(f"{name}, llama-batched-bench: {found}", file=sys.stderr, flush=True)
    for name, kind in others.items():
        if only and name[0] not in only:
            continue
        other = await asyncio.to_thread(random_model, kind)
        async with AsyncExitStack() as stack:
            servers = [
                await stack.enter_async_context(running(peer, other, CELLS, threads, binaries))
                for peer in peers_of(other)
            ]
            for n in (1, 8, 32):
                for server in servers:
                    await server.ask([7] * 20, 2, 4)
                    found = await alternatives_of_tokens(server, n)
                    results.setdefault(f"{name}, n = {n}", {}).setdefault(server.peer.name, []).append(found)
    for _ in range(0 if only and "K" not in only else 1 if quick else 3):
        for peer in peers:
            found = await cold_start(peer, model, threads, binaries)
            results.setdefault("K: cold start", {}).setdefault(peer.name, []).append(found)
    return results, ceilings


def table(results: Results) -> str:
    """Return a table of medians with their spread, and of srb's median divided by that of the better llama-server."""
    names = list(next(iter(results.values())))
    lines = [
        f"| | | {' | '.join(names)} | srb / the better on the file | goal | srb / tuned |",
        "|---" * (len(names) + 5) + "|",
    ]
    for scenario, by_peer in results.items():
        for metric in by_peer[SRB.name][0]:
            values = {name: [each[metric] for each in by_peer[name]] for name in names}
            medians = {name: statistics.median(each) for name, each in values.items()}
            shown = [f"{_show(medians[name])} {_spread(values[name])}" for name in names]
            is_rate = "tokens/s" in metric
            best = (max if is_rate else min)(medians[name] for name in ON_THE_FILE if name in medians)
            ratios = [f"{medians[SRB.name] / each:.2f}" if each else "" for each in (best, medians[TUNED])]
            goal = GOALS.get((scenario, metric))
            aim = "" if goal is None else f"at {'least' if is_rate else 'most'} {goal}"
            unit = "" if is_rate or "MiB" in metric else ", s"
            label = "" if metric != next(iter(by_peer[SRB.name][0])) else scenario
            lines.append(f"| {label} | {metric}{unit} | {' | '.join(shown)} | {ratios[0]} | {aim} | {ratios[1]} |")
    return "\n".join(lines)


def ceiling_table(results: Results, ceilings: dict[str, list[Numbers]]) -> str:
    """Return a table of srb's decoding speed in scenario A and llama-batched-bench's at about the same time."""
    lines = ["| | srb | flash attention on | off | srb / on |", "|---|---|---|---|---|"]
    for name, n in CEILINGS.items():
        if name not in ceilings:
            continue
        srb = [each["decode tokens/s"] for each in results[name]["srb"]]
        on, off = ([each[flash_attn] for each in ceilings[name]] for flash_attn in ("on", "off"))
        shown = [f"{_show(statistics.median(each))} {_spread(each)}" for each in (srb, on, off)]
        lines.append(f"| n = {n} | {' | '.join(shown)} | {statistics.median(srb) / statistics.median(on):.2f} |")
    return "\n".join(lines)


def _show(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _spread(values: list[float]) -> str:
    return f"({_show(min(values))} to {_show(max(values))})" if len(values) > 1 else ""


def _pyplot() -> Any:
    """Return matplotlib's pyplot for a machine without a display. The import is slow, so it is done here."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    return pyplot


def plot(results: Results, path: Path) -> None:
    """Plot a bar for each server: how long each scenario took."""
    timed = {name: by_peer for name, by_peer in results.items() if "all" in by_peer["srb"][0] and name[0] != "J"}
    figure, axes = _pyplot().subplots(figsize=(9, 0.55 * len(timed) + 1.2), layout="constrained")
    names = list(next(iter(results.values())))
    height = 0.8 / len(names)
    for k, name in enumerate(names):
        medians = [statistics.median(each["all"] for each in by_peer[name]) for by_peer in timed.values()]
        places = [place + k * height for place in range(len(timed))]
        axes.barh(places, medians, height, label=name)
    axes.set_yticks([place + height for place in range(len(timed))], list(timed))
    axes.invert_yaxis()
    axes.set_xlabel("seconds until everything is done")
    axes.legend()
    figure.savefig(path, metadata={"Date": None})


def plot_growth(results: Results, path: Path) -> None:
    """Plot lines for each server: how time and memory grow with n and with the prompt."""
    figure, axes = _pyplot().subplots(2, 2, figsize=(9, 6), layout="constrained", sharex="col", sharey="row")
    series = (("n", {n: f"J: n = {n}" for n in GROWING_N}), ("words", {k: f"J: {k} words" for k in GROWING_WORDS}))
    for column, (label, scenario_at) in enumerate(series):
        for row, metric in enumerate(("all", "peak memory, MiB")):
            for peer in next(iter(results.values())):
                found = [results[name][peer] for name in scenario_at.values()]
                medians = [statistics.median(each[metric] for each in repetitions) for repetitions in found]
                axes[row][column].plot(list(scenario_at), medians, marker="o", label=peer)
        axes[1][column].set_xlabel(label)
    axes[0][0].set_ylabel("seconds until everything is done")
    axes[1][0].set_ylabel("peak memory, MiB")
    axes[0][0].legend()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binaries", type=Path, required=True, help="folder of llama-server and llama-batched-bench")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions and sizes")
    parser.add_argument("--only", default="", metavar="LETTERS", help="measure these scenarios; example: AGHK")
    parser.add_argument("--model", type=Path, help="measure with this one alone")
    parser.add_argument(
        "--folder", type=Path, default=ROOT / "docs/figures", help="where to write; left out: docs/figures"
    )
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    model, threads = find_model(options.model), physical_cores()
    others = {} if options.model else OTHER_MODELS | (ON_A_CARD if _card() else {})
    results, ceilings = asyncio.run(measure(model, threads, options.binaries, options.quick, others, options.only))
    publish(results, ceilings, model, threads, options.quick, options.folder)


def publish(
    results: Results, ceilings: dict[str, list[Numbers]], model: Path, threads: int, quick: bool, folder: Path
) -> None:
    """Write the files to the folder."""
    machine = {
        "processor": _processor(),
        **_card(),
        "threads": threads,
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
        "llama-cpp-python": importlib.metadata.version("llama-cpp-python"),
        "model": model.name,
        "quick": quick,
    }
    raw = {"machine": machine, "results": results, "ceiling": ceilings}
    (folder / "comparison.json").write_text(json.dumps(raw, indent=1) + "\n")
    growth = "" if quick else "J, with 32 tokens each:\n\n![How time and memory grow](growth.svg)\n\n"
    said = ", ".join(f"{name} {value}" for name, value in machine.items())
    (folder / "comparison.md").write_text(
        "# srb and llama-server\n\nWritten by `./build.sh bench`; docs/figures/benchmarks.md explains it.\n\n"
        f"{said}.\n\n"
        f"![How long everything took](comparison.svg)\n\n{growth}{table(results)}\n\n"
        "B: the tokens that llama-batched-bench decodes in a second, in turn with A "
        f"(`-pps -kvu`, {PROMPT_TOKENS} shared, 64 generated):\n\n{ceiling_table(results, ceilings)}\n"
    )
    plot(results, folder / "comparison.svg")
    if not quick:
        plot_growth(results, folder / "growth.svg")


def _card() -> dict[str, str]:
    """Return the name of the GPU, if llama.cpp was built for NVIDIA; else an empty string."""
    if not llama_cpp.llama_supports_gpu_offload():
        return {}
    query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        return {"card": subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()}
    except (OSError, subprocess.CalledProcessError):
        return {"card": "unknown"}


def _processor() -> str:
    try:
        found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
        return found[1] if found else platform.machine()
    except OSError:
        return platform.machine()


if __name__ == "__main__":
    main()

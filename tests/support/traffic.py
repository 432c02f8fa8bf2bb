"""Random traffic for an engine, as programs, which can be generated from a seed, shrunk, printed, and run again.

A program says when which request is sent, continued or aborted. Its repr is Python text that makes the program again.
"""

import dataclasses
import itertools
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar


class _Short:
    """Has a repr that leaves out fields with their default values."""

    def __repr__(self) -> str:
        given = [
            f"{field.name}={getattr(self, field.name)!r}"
            for field in dataclasses.fields(self)  # type: ignore[arg-type]
            if getattr(self, field.name) != field.default
        ]
        return f"{type(self).__name__}({', '.join(given)})"


@dataclass(frozen=True, repr=False)
class Run(_Short):
    """The first `length` tokens of the endless random text number `seed`. Two runs with the same seed begin alike."""

    seed: int
    length: int


@dataclass(frozen=True, repr=False)
class Said(_Short):
    """The first `length` tokens of a prompt and its answer, as far as this has come.

    For example, with a prompt of 50 tokens, `Said(name, index, 60)` is this prompt with the first 10 tokens of the
    answer, or with fewer if there aren't so many yet. It has no tokens if no request has this name.
    """

    name: int
    index: int
    length: int


Parts = tuple[Run | Said, ...]
"""A prompt: the tokens of all parts, one part after the other."""


@dataclass(frozen=True, repr=False)
class Ask(_Short):
    """Sends a request.

    name: its number, by which `Said` and `Abort` name it.
    branches: for each alternative, the fields of `SamplingParams` that aren't at their defaults. The defaults here are
        a temperature of 0 and `ignore_eos`. `ban` k bans every third token from the k-th on, see `banned`. `refuse` k
        bans some characters, and pairs of characters, as strings, see `refused`. `match` k is an expression that the
        text matches, see `matched`. `draw` is the seed, and says how tokens are drawn where that doesn't have to be
        certain (`alone.DRAWS`). `lora` is the scale of the model's adapter, if it has one. `guide` is a negative
        prompt.
    suffix: the text behind a bridge, which is scored behind each alternative.
    """

    name: int
    prompts: tuple[Parts, ...]
    branches: tuple[dict[str, Any], ...] = ({},)
    echo: bool = False
    cache_prompt: bool = True
    suffix: Run | None = None


@dataclass(frozen=True, repr=False)
class Abort(_Short):
    """Aborts a request, or one alternative of it."""

    name: int
    index: int | None = None


@dataclass(frozen=True, repr=False)
class Step(_Short):
    """Steps the engine so many times."""

    times: int = 1


@dataclass(frozen=True, repr=False)
class Restart(_Short):
    """Lets all running requests end, and starts another engine, which has only the files of the last one."""


Op = Ask | Abort | Step | Restart


@dataclass(frozen=True, repr=False)
class Program(_Short):
    """What an engine is asked, and how it is set up. After the last operation, it is stepped until it has no work.

    restarts: whether it also keeps what was evaluated in files. Without this, a `Restart` does nothing.
    guesses: whether rows cost so little that whatever may be guessed is evaluated.
    layouts: the seed of the layouts that are chosen at random moments; 0: the first one stays; None: the backend
        chooses.
    """

    ops: tuple[Op, ...]
    ctx_size: int = 512
    parallel: int = 4
    batch_size: int = 64
    cache_bytes: int = 0
    restarts: bool = False
    drafts: bool = False
    layouts: int | None = None

    def __str__(self) -> str:
        settings = dataclasses.replace(self, ops=())
        ops = "".join(f"        {op},\n" for op in self.ops)
        return repr(settings).replace("ops=()", f"\n    ops=(\n{ops}    )").removesuffix(")") + ",\n)"


def banned(k: int | None, n_vocab: int) -> range:
    """The tokens that `ban` k bans. Tokens from 3,000 on aren't banned, because a list of all would take long."""
    return range(0) if k is None else range(k, min(n_vocab, 3000), 3)


def refused(k: int | None) -> tuple[str, ...]:
    """The strings that `refuse` k bans."""
    if k is None:
        return ()
    pairs = [chr(first) + chr(second) for first in range(33 + k, 127, 12) for second in range(32, 127)]
    return (*map(chr, range(32 + k, 127, 12)), *pairs)


def matched(k: int | None) -> str | None:
    """The expression that `match` k stands for: a text without an end, which repeats k + 1 words."""
    return None if k is None else f"([a-z]{{1,3}}{', again the same' * (k + 1)}[.!] )*"


def words(text: Run, vocabulary: range) -> tuple[int, ...]:
    """The tokens of a random text."""
    rng = random.Random(text.seed)
    return tuple(rng.choice(vocabulary) for _ in range(text.length))


def tokens(parts: Parts, vocabulary: range, said: Callable[[int, int], tuple[int, ...]]) -> tuple[int, ...]:
    """The tokens of a prompt. said: returns the tokens of a request's prompt and answer so far, by name and index."""
    texts = [words(part, vocabulary) if isinstance(part, Run) else said(part.name, part.index) for part in parts]
    return tuple(itertools.chain(*(text[: part.length] for text, part in zip(texts, parts, strict=True))))


def generate(seed: int, unit: int = 32) -> Program:
    """A random program. unit: a length in tokens, such as the model's window. The texts are a few times as long."""
    return _Generator(random.Random(seed), unit).program()


class _Generator:
    def __init__(self, rng: random.Random, unit: int) -> None:
        self._rng = rng
        self._unit = unit
        self._asks: list[Ask] = []

    def program(self) -> Program:
        rng, unit = self._rng, self._unit
        self._ctx_size = rng.choice([8, 8, 16, 16, 32]) * unit
        self._parallel = rng.choice([2, 3, 4, 8])
        ops: list[Op] = []
        for _ in range(rng.randint(2, 8)):
            ops.append(self._ask())
            if rng.random() < 0.25:
                name = rng.choice(self._asks).name
                ops.append(Abort(name, rng.choice([None, 0, 1])))
            if times := rng.choice([0, 1, 5, 20, unit, 2 * unit, 2 * unit, 6 * unit]):
                ops.append(Step(times))
        program = Program(
            tuple(ops),
            ctx_size=self._ctx_size,
            parallel=self._parallel,
            batch_size=rng.choice([unit // 2, unit, 2 * unit, 8 * unit]),
            cache_bytes=rng.choice([0, 4000 * unit, 10**8, 10**8]),
            drafts=rng.random() < 0.5,
        )
        if rng.random() < 0.7:
            return program
        for _ in range(rng.choice([1, 1, 2])):
            ops.insert(rng.randrange(1, len(ops) + 1), Restart())
        return dataclasses.replace(program, ops=tuple(ops), restarts=True)

    def _ask(self) -> Ask:
        rng, name = self._rng, len(self._asks)
        if self._asks and rng.random() < 0.2:
            ask = dataclasses.replace(rng.choice(self._asks), name=name)
        elif rng.random() < 0.15:
            suffix = Run(rng.randrange(3), rng.choice([1, 5, self._unit]))
            ask = Ask(name, prompts=self._prompts(), branches=self._alike(), suffix=suffix)
        else:
            ask = Ask(
                name,
                prompts=self._prompts(),
                branches=self._branches(),
                echo=rng.random() < 0.1,
                cache_prompt=rng.random() < 0.9,
            )
        self._asks.append(ask)
        return ask

    def _prompts(self) -> tuple[Parts, ...]:
        """Prompts that begin like each other, like a random text that others begin with, or like an earlier answer."""
        rng = self._rng
        first = self._beginning()
        others = [
            self._beginning() if rng.random() < 0.3 else self._cut(first) for _ in range(rng.choice([0, 0, 0, 1, 2]))
        ]
        prompts = [(*beginning, *self._tail()) for beginning in (first, *others)]
        rng.shuffle(prompts)
        return tuple(prompts)

    def _beginning(self) -> Parts:
        rng = self._rng
        if self._asks and rng.random() < 0.6:
            ask = rng.choice(self._asks)
            index = rng.randrange(len(ask.prompts) * len(ask.branches))
            return (Said(ask.name, index, rng.choice([rng.randint(1, 8 * self._unit), 10**6])),)
        return (Run(rng.randrange(3), rng.randint(1, min(self._ctx_size // 2, 6 * self._unit))),)

    def _cut(self, parts: Parts) -> Parts:
        part = parts[0]
        longest = min(part.length, 8 * self._unit)
        return (dataclasses.replace(part, length=self._rng.randint(1, longest)),)

    def _tail(self) -> Parts:
        length = self._rng.choice([0, 1, 3, 10, self._unit])
        return (Run(self._rng.randrange(100, 10**6), length),) if length else ()

    def _branches(self) -> tuple[dict[str, Any], ...]:
        rng = self._rng
        n = rng.choice([1, 1, 1, 2, 2, self._parallel + 1])
        longest = rng.choice([1, 10, self._unit, self._unit, 2 * self._unit, 2 * self._unit, 4 * self._unit, None])
        longest = rng.choice([0, -1]) if rng.random() < 0.1 else longest
        return tuple(self._branch(longest) for _ in range(n))

    def _alike(self) -> tuple[dict[str, Any], ...]:
        """Branches that differ in their seeds alone, and draw in the same way: those of a bridge."""
        rng = self._rng
        branch = self._branch(rng.choice([0, 1, 10, self._unit, 2 * self._unit]))
        branch.pop("refuse", None)
        n = rng.choice([1, 2, self._parallel - 1])
        return tuple(branch | {"draw": branch["draw"] + 4 * k} for k in range(n))

    def _branch(self, max_tokens: int | None) -> dict[str, Any]:
        rng = self._rng
        if max_tokens is not None and rng.random() < 0.2:
            max_tokens = rng.randint(1, 2 * self._unit)
        branch: dict[str, Any] = {} if max_tokens is None else {"max_tokens": max_tokens}
        if rng.random() < 0.6:
            branch["ban"] = rng.randrange(3)
        if rng.random() < 0.3:
            branch["presence_penalty"] = rng.choice([0.5, 2.0])
        if rng.random() < 0.1:
            branch["stop"] = tuple(rng.sample("abcdefghijklmnop ,.", 3))
        if rng.random() < 0.1:
            branch["ignore_eos"] = False
        if rng.random() < 0.15:
            branch["refuse"] = rng.randrange(12)
        branch["draw"] = rng.randrange(100)
        if not branch.keys() & {"ban", "refuse"} and rng.random() < 0.4:
            branch["match"] = rng.randrange(10)
        return branch


def press(seed: int) -> Program:
    """A random program for so small a cache that sequences are preempted; in some the layout changes, too."""
    return _Presser(random.Random(seed), 32).pressed()


class _Presser(_Generator):
    """Makes programs that need much more than the 256 cells that they have, though each alternative alone fits."""

    def pressed(self) -> Program:
        rng = self._rng
        self._ctx_size, self._parallel = 256, rng.choice([4, 6, 8])
        ops: list[Op] = []
        for _ in range(rng.randint(3, 8)):
            ops.append(self._ask())
            if rng.random() < 0.3:
                ops.append(Abort(rng.choice(self._asks).name, rng.choice([None, 0, 1, 2])))
            if times := rng.choice([0, 0, 1, 5, 20, 60]):
                ops.append(Step(times))
        return Program(
            tuple(ops),
            ctx_size=self._ctx_size,
            parallel=self._parallel,
            batch_size=rng.choice([16, 32, 64, 256]),
            cache_bytes=rng.choice([0, 50_000, 200_000, 10**8]),
            drafts=rng.random() < 0.3,
            layouts=rng.choice([0, rng.randrange(1, 10**6)]),
        )

    def _beginning(self) -> Parts:
        rng = self._rng
        if self._asks and rng.random() < 0.4:
            ask = rng.choice(self._asks)
            index = rng.randrange(len(ask.prompts) * len(ask.branches))
            return (Said(ask.name, index, rng.choice([30, 60, 110])),)
        return (Run(rng.randrange(3), rng.choice([20, 20, 40, 110])),)

    def _tail(self) -> Parts:
        length = self._rng.choice([0, 1, 3, 10])
        return (Run(self._rng.randrange(100, 10**6), length),) if length else ()

    def _branches(self) -> tuple[dict[str, Any], ...]:
        return tuple(self._branch(None) for _ in range(self._rng.choice([1, 2, 4, 6])))

    def _branch(self, max_tokens: int | None) -> dict[str, Any]:
        rng = self._rng
        branch = super()._branch(max_tokens) | {"max_tokens": rng.choice([20, 50, 80, 80])}
        if rng.random() < 0.4:
            branch["temperature"] = 1.0
        if rng.random() < 0.15:
            branch["lora"] = rng.choice([0.5, 1.0])
        if rng.random() < 0.15:
            branch["guide"] = Run(rng.randrange(3), rng.randint(5, 30))
        return branch


def shrink(program: Program, fails: Callable[[Program], bool], seconds: float) -> Program:
    """A smaller program that fails, too. Ends when nothing more can be left out, or after so many seconds."""
    until = time.monotonic() + seconds
    while True:
        for smaller in _smaller(program):
            if time.monotonic() > until:
                return program
            if fails(smaller):
                program = smaller
                break
        else:
            return program


_LENGTHS = ("length", "times", "max_tokens")
"""Numbers that may be smaller in a smaller program."""


def _smaller(value: Any, name: str = "") -> Iterator[Any]:
    """Values that lack something of this one, which a field `name` has. Those that lack the most come first."""
    if isinstance(value, tuple):
        yield from _without(value)
        for k, each in enumerate(value):
            yield from ((*value[:k], less, *value[k + 1 :]) for less in _smaller(each))
    elif isinstance(value, dict):
        for key, each in value.items():
            if key not in _LENGTHS:
                yield {other: value[other] for other in value if other != key}
            yield from (value | {key: less} for less in _smaller(each, key))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            own = getattr(value, field.name)
            default = [] if field.default in (dataclasses.MISSING, own) else [field.default]
            for less in itertools.chain(default, _smaller(own, field.name)):
                yield dataclasses.replace(value, **{field.name: less})
    elif name in _LENGTHS and value:
        lengths = dict.fromkeys((value // 2, value * 3 // 4, value * 7 // 8))
        yield from (less for less in lengths if 0 < less < value)


_Item = TypeVar("_Item")


def _without(items: tuple[_Item, ...]) -> Iterator[tuple[_Item, ...]]:
    """The items without a half of them, without a quarter, and so on, down to without each single one."""
    size = len(items) // 2
    while size:
        for start in range(0, len(items), size):
            yield (*items[:start], *items[start + size :])
        size //= 2

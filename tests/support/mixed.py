"""What tests with random requests draw from: a model that says ASCII characters, prompts, bans and costs."""

import dataclasses
import math

from fake_backend import END, IN_STEP, babble

from srb.engine.sampling_params import SamplingParams


def ascii_babble(params: SamplingParams, tokens: tuple[int, ...]) -> int:
    """Nothing but whole characters, so that a text can be sent back."""
    token = babble(params, tokens)
    return token if token == END else token % 128


BANNED = (*map(chr, range(10, 60)), *(chr(k) + chr(n) for k in range(5) for n in range(128)))
"""Characters that never come, and some that nothing may follow."""

ASCII = tuple((token, -math.inf) for token in range(128, 256))

TEXTS = ["p" * 50, "p" * 20 + "q" * 30, "r" * 50]

COSTS = [
    IN_STEP,
    dataclasses.replace(IN_STEP, prompt_cell=0.1),  # what is late in a long prompt is so in a short one, too
    dataclasses.replace(IN_STEP, prompt_token=0.2, in_turn=True),
    dataclasses.replace(IN_STEP, row=0.0, prompt_token=0.02, in_turn=True),
    dataclasses.replace(IN_STEP, step=100.0),  # rows for what is guessed are nearly free
]

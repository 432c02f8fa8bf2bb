"""The engine: it decides which tokens are evaluated and drawn, and when. Pure Python, without asyncio, JSON or HTTP.

At the root is the heart, which every request passes through, and which names no feature. `engine.py` puts all parts
together and orders a step; begin with it, and read `ports.py` before you add a feature. `mailbox.py` has what other
threads want, `sequence.py` the state that all files work on, `scheduler.py` says who runs, `plan.py` fills
a batch, and `decoding.py` evaluates it. `backend.py`, `batch.py` and `costs.py` are the protocols of what evaluates.
Around the heart are rooms: `asking/`, `kv/`, `planning/`, `kept/`, `ways/`, `rules/`, `prompts/`, `telling/` and
`programs/`.

In: a `CompletionRequest`, from any thread. Out: a list of events for each step.

- A step returns news before it evaluates. An evaluation may take seconds, and a client should see `start`, or that its
  cancel worked, before that.
- `add_request`, `abort` and `tokenize` touch only a locked mailbox and the thread-safe vocabulary. So a request that
  can't run is refused before its response begins.
- Ranges are checked in `SamplingParams`, for the library and for every wire format. pydantic in `wire/` checks types.
- A sequence is in one `state`: waiting (it holds nothing), prefilling (it holds cells, and its prompt is being
  evaluated), running (each step has a row for it), idle (other rows run in its place), preempted (its cells are swapped
  out, and it waits for others) or finished.
- A prompt is evaluated in a sequence of its own. When its last token is evaluated, `ModelRunner.begin_sequences` lets
its
  way begin: each alternative gets a fork of that sequence (`seq_cp`, which copies no data in a unified cache) and draws
  its first token from `Prompt.logits`. The logits are kept while the prompt lives, for alternatives that begin later.
"""

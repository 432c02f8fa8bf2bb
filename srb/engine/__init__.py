"""The engine: schedules requests, decodes batches, samples tokens. Pure Python, without asyncio, JSON or HTTP.

`engine.py` puts the parts together and orders a step; begin there. ARCHITECTURE.md has the map.

In: a `CompletionRequest`, from any thread. Out: a list of events for each step.

- A step returns its events before it decodes. A decode may take seconds, and a client should get `start`, or the end of
  a request that it cancelled, before that.
- `add_request`, `abort` and `tokenize` touch only a locked mailbox and the thread-safe vocabulary. So a request that
  can't run is refused before its response begins.
- Ranges are checked in `SamplingParams` and `CompletionRequest`, for the library and for every wire format. pydantic in
  `wire/` checks types.
- A sequence is in one `state` (`sequence.py: SequenceState`).
- A seq_id has one owner: a prompt, a sequence, a row of a strategy, or a mark (`rollback.py`). A prompt's goes to the
  last sequence that is forked off it (`Cells.fork`), and back if that one leaves before others (`Cells._empty`).
- A prompt is evaluated in a sequence of its own. Then each alternative gets a fork of that sequence (`seq_cp`, which
  copies no data in a unified cache) and samples its first token from `Prompt.logits`. The logits are kept while the
  prompt lives, for alternatives that start later.
"""

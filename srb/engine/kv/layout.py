"""`Layout`: how the cells of a KV cache are laid out, and `Load`, by which a backend chooses a layout.

In the *unified* layout all sequences share one pool of cells. A fork is free, and attention computes every row over the
cells of all sequences. In *streams* each sequence has cells of its own. A fork copies them, and attention sees only the
cells of one sequence. So one prompt with many alternatives is fastest in a unified cache, and many prompts in streams.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of one context.

    is_unified: whether all sequences share one pool of cells; otherwise they are in streams.
    n_cells: how many cells the pool has, or each stream.
    n_seqs: how many sequences there can be; seq_ids go from 0 to n_seqs - 1.
    flash_attn: the kind of attention, which is the backend's own business.
    """

    is_unified: bool
    n_cells: int
    n_seqs: int
    flash_attn: str = ""

    @property
    def name(self) -> str:
        """The layout's name, as `--kv-layout` has it."""
        return "unified" if self.is_unified else "streams"


@dataclass(frozen=True, slots=True)
class Load:
    """A prompt that runs or waits, with the rows that continue it.

    n_tokens: the tokens of the prompt. n_computed: how many of them are in cells, or will be without evaluating them.
    n_shared: how many of its first tokens have the same cells in a unified cache as those of an earlier prompt.
    n_rows: how many rows continue it.
    n_generated: how many tokens each row has in cells behind the prompt, at most.
    max_tokens: how many tokens each row may still generate.
    needs_unified: whether its rows fork or move each other's cells, which streams can't do, or only slowly.
    """

    n_tokens: int
    n_computed: int
    n_shared: int
    n_rows: int
    n_generated: int
    max_tokens: int
    needs_unified: bool = False

"""How a claim reads lanes: which of them, in what order, and how many jobs of each block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

EVERY: Final = ""
"""The name of the block of all lanes of the list."""


class Reading(NamedTuple):
    """How a claim reads lanes: in blocks, each up to its quota. Made by `Floors.blocks` and `Floors.single`."""

    lanes: Sequence[int]
    """Places of lanes, in the order in which they are read, block after block."""
    firsts: Sequence[int]
    lasts: Sequence[int]
    """Where each block begins and ends in `lanes`, from 1."""
    quotas: Sequence[int]
    names: Sequence[str | None]
    """The queue of each of them; `EVERY` for those of the list; None where what it finds implies nothing for the others."""
    behind: int
    """How many of the lanes, from the first, a look behind the floors is for."""

    @property
    def is_flat(self) -> bool:
        """Whether each block is a single lane, in their order."""
        return len(self.firsts) == len(self.lanes) and self.firsts == list(range(1, len(self.lanes) + 1))

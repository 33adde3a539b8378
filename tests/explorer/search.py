"""Which operation goes next: depth first through the tree of choices, or by a line that was printed before."""

from __future__ import annotations

import random
from collections.abc import Hashable, Sequence
from typing import Protocol

MISSES = 10
"""How often a subtree that PostgreSQL did not lead back into is tried again before it is given up."""


class Selector(Protocol):
    """Decides who goes next."""

    def choose(self, enabled: Sequence[str], state: Hashable) -> str:
        """Return one of the enabled operations; `state` is all that tells this point from others after the same choices."""


class _Node:
    """A point of choice: the choices not yet tried there to the end, and where each choice led."""

    __slots__ = ("children", "misses", "open")

    def __init__(self, enabled: Sequence[str]) -> None:
        self.open = list(enabled)
        self.children: dict[str, dict[Hashable, _Node]] = {}
        self.misses = 0


class Search:
    """Every path through the tree of choices, each once: at each point the first choice that is not exhausted.

    The tree is not known before: the enabled steps of a point are seen when a run gets there. The same choices mostly lead
    to the same point; where two waiters are woken at once they may not, so the state after a choice is part of the
    path, each variant a subtree of its own. A run that falls into an exhausted one is a repetition, and after `MISSES`
    of them its other variants are given up, and counted as `unreached`.
    """

    def __init__(self, seed: int | None = None) -> None:
        """`seed`: take a random choice that is not exhausted instead of the first one."""
        self.unreached = 0
        self._random = None if seed is None else random.Random(seed)
        self._root = _Node([""])
        self._path: list[tuple[_Node, str]] = []

    @property
    def is_exhausted(self) -> bool:
        """Return whether every path was taken."""
        return not self._root.open

    def begin(self) -> None:
        """Go back to the root."""
        self._path = [(self._root, "")]

    def choose(self, enabled: Sequence[str], state: Hashable) -> str:
        """Take the next choice of the path; the first of all once it only repeats another."""
        parent, choice_taken = self._path[-1]
        node = parent.children.setdefault(choice_taken, {}).setdefault(state, _Node(enabled))
        choices = node.open or enabled
        choice = choices[0] if self._random is None else self._random.choice(choices)
        self._path.append((node, choice))
        return choice

    def end(self) -> bool:
        """Mark the exhausted parts of the path; return whether it was a new one."""
        open_place = next((place for place, (node, _) in enumerate(self._path) if not node.open), None)
        if open_place is not None:
            del self._path[open_place:]
            node, choice = self._path[-1]
            node.misses += 1
            if node.misses < MISSES:
                return False
            node.misses = 0
            self.unreached += 1
            node.children.pop(choice)
        while self._path:
            node, choice = self._path.pop()
            if any(child.open for child in node.children.get(choice, {}).values()):
                break
            node.open.remove(choice)
            for child in node.children.get(choice, {}).values():
                child.children.clear()
        return open_place is None


class Script:
    """The choices of a printed schedule; after its end, the first that is enabled."""

    def __init__(self, schedule: str) -> None:
        self._choices = [choice.removesuffix("*") for choice in schedule.split()]
        self._place = 0

    def choose(self, enabled: Sequence[str], state: Hashable) -> str:
        """Take the next choice. Raises: ValueError when it is not enabled now."""
        if self._place == len(self._choices):
            return enabled[0]
        choice = self._choices[self._place]
        self._place += 1
        if choice not in enabled:
            raise ValueError(f"step {self._place} of the schedule cannot be {choice!r}: only {list(enabled)} can go on")
        return choice

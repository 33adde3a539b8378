"""Which lanes a claim may leave out: those that were empty a moment ago, and those behind others that were not.

A worker of many queues has 19 lanes of each, of which few have jobs. A lane that is left out keeps its floor, so nothing is
passed over: what comes into it is found when all lanes of its block are read again: with the next look behind the floors,
as soon as a notification names its queue, and whenever a claim finds less than it was allowed. So a lane is left out only
while others keep all slots busy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class Sparing:
    """What is known of the lanes of some blocks, by name: of a queue, or of several that are read as one.

    The clock, monotonic seconds, is an argument everywhere.
    """

    def __init__(self) -> None:
        self._stirred: set[str] = set()
        self.fresh_for = 0.0
        """Seconds for which what was found in a block decides which of its lanes are read."""
        self.forget()

    def forget(self) -> None:
        """Know of nothing: the next claim reads all lanes."""
        self._known: dict[str, list[int]] = {}
        self._below: dict[str, list[int]] = {}
        self._fresh_until: dict[str, float] = {}

    def stir(self, names: Iterable[str]) -> None:
        """Have the next claim read all lanes of some blocks; a claim that is under way meanwhile does not undo this."""
        self._stirred.update(names)

    def has_more(self, name: str) -> bool:
        """Return whether a block is known to have had more jobs that are due than were taken."""
        return bool(self._known.get(name))

    def first(self, name: str) -> int | None:
        """Return the lane with which the next claim of a block begins, of those known to have jobs."""
        return next(iter(self._known.get(name, ())), None)

    def lanes(self, name: str, places: Sequence[int], now: float) -> Sequence[int]:
        """Return which lanes of a block to read, of its `places`: all, those known to have jobs, or none."""
        if name in self._stirred:
            self._stirred.discard(name)
            return places
        return self._known[name] if now < self._fresh_until.get(name, now) else places

    def learn(self, name: str, block: Sequence[int], cut: int, *, is_whole: bool, now: float) -> None:
        """Record that a claim read a block up to the lane at `cut`, which has more; without a `cut`, to its end."""
        if is_whole:
            self._fresh_until[name] = now + self.fresh_for
            self._below[name] = []
        elif name not in self._known:
            return  # forgotten meanwhile
        below = [*block[cut + 1 :], *self._below[name]]
        if cut < len(block):
            self._known[name], self._below[name] = [block[cut]], below
        else:
            self._known[name], self._below[name] = below, []

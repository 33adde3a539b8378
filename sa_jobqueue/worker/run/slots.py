"""The slots that the workers of one process share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, Protocol

_ANSWERED_WITHIN: Final = 1.0
"""Seconds for which a claim without an answer keeps its slots from others: a database that is gone must not hold them up."""


class Member(Protocol):
    """An executor."""

    changed: asyncio.Event

    @property
    def running(self) -> int:
        """How many attempts are running."""


class Slots:
    """At most `total` attempts at a time in all executors together.

    A claim reserves half of the free slots, so that claims of several databases run side by side. When slots become free,
    executors are woken in the order of what they run per weight.
    """

    def __init__(self, total: int) -> None:
        self._total = total
        self._weights: dict[Member, int] = {}
        self._reserved: dict[Member, tuple[int, float]] = {}
        """Up to how many attempts an executor that claims may run, and until when that keeps slots from others."""
        self._claimed_at: dict[Member, float] = {}
        """When each last claimed."""
        self._starved: set[Member] = set()
        """Who found no free slot. Waking the others would make each claim of one database a claim of all."""

    def join(self, member: Member, weight: int) -> None:
        """Share with an executor."""
        self._weights[member] = weight

    def leave(self, member: Member) -> None:
        """Share with it no more: its attempts have ended."""
        self._weights.pop(member, None)
        self._claimed_at.pop(member, None)
        self._starved.discard(member)
        self.freed()

    def free(self, member: Member) -> int:
        """Return how many more attempts an executor may start; while it claims, of those that it has reserved."""
        now = time.monotonic()
        reserved = {peer: up_to - peer.running for peer, (up_to, until) in self._reserved.items() if until > now}
        mine = reserved.pop(member, None)
        unreserved = (
            self._total - sum(peer.running for peer in self._weights) - sum(max(slots, 0) for slots in reserved.values())
        )
        free = unreserved if mine is None else min(unreserved, mine)
        if free <= 0:
            self._starved.add(member)
        return free

    @asynccontextmanager
    async def claiming(self, member: Member) -> AsyncIterator[None]:
        """Reserve slots for the duration of a claim; executors that wait for a slot claim before this one does again."""
        half = (max(self.free(member), 0) + 1) // 2
        now = self._claimed_at[member] = time.monotonic()
        self._reserved[member] = member.running + half, now + _ANSWERED_WITHIN
        try:
            yield
        finally:
            self._reserved.pop(member, None)
            self.freed()
            await asyncio.sleep(0)

    def freed(self) -> None:
        """Wake executors that wait for a slot, of those that run equally many the one that claimed least recently first."""

        def order(member: Member) -> tuple[float, float]:
            return member.running / self._weights[member], self._claimed_at.get(member, 0.0)

        for member in sorted(self._starved, key=order):
            member.changed.set()
        self._starved.clear()

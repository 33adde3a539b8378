"""Notifies other workers of capacity that this worker freed under limits, if they may be waiting for it.

Another worker that found no capacity tries again after half a second at the latest. It is notified earlier where a limit was
reached until a job of this worker ended, and this worker, which may use the slot first, leaves it to others. Where a claim
follows the end, its count shows this. Where none follows, as in a worker that is stopping or has no free slot, others are
notified unless the last count showed plenty of capacity.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeAlias

from sa_jobqueue.context import ClaimedJob
from sa_jobqueue.worker.claim.limits import Key, Limits

OWN_TURN: Final = 0.01
"""Seconds that this worker has to use a slot itself, and between two notifications of free capacity: a commit that notifies
takes a lock of the whole database."""

TRUSTED: Final = 0.1
"""Seconds for which a worker trusts its own count of what it runs."""

Notify: TypeAlias = Callable[[Iterable[Key]], None]


class Freed:
    """Jobs that one worker runs under limits, and those of them that have ended since the last count.

    `notify`: notify other workers that these limits may have capacity.
    A crash loses nothing permanently: other workers find the capacity with their next try.
    """

    def __init__(self, notify: Notify) -> None:
        self._loop = asyncio.get_running_loop()
        self._notify = notify
        self._held: dict[Any, tuple[Limits, str]] = {}
        self._over: dict[tuple[Limits, str], int] = {}
        self._ended: dict[Limits, Counter[Key]] = {}
        self._counting: Limits | None = None
        self._counted: set[tuple[Limits, Key]] = set()
        self._to_notify: dict[Key, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._has_turn = False

    @contextmanager
    def own_turn(self) -> Iterator[None]:
        """Let this worker, which claims for the length of a block, use first what it frees."""
        self._has_turn = True
        try:
            yield
        finally:
            self._has_turn, self._counting = False, None
            if self._timer is not None:
                self._timer.cancel()
                self._pass_on()

    def end(self, job_id: Any) -> str | None:
        """Take in that a job has ended; return the queue of one that was held, its part where it is of one."""
        held = self._held.pop(job_id, None)
        if held is None:
            return None
        limits, queue = held
        limits.held -= 1
        # Nothing more than that for each job: what they count under is the same for all of a queue.
        self._over[held] = self._over.get(held, 0) + 1
        if self._timer is None:
            self._wait()
        return queue

    def _take_in(self) -> None:
        over, self._over = self._over, {}
        for (limits, queue), n in over.items():
            for key in limits.keys_of(queue):
                self._ended.setdefault(limits, Counter())[key] += n

    def keep(self, job_ids: Collection[Any]) -> None:
        """Record that of the jobs that were held all but these have ended, even if no end was reported."""
        for job_id in self._held.keys() - job_ids:
            self.end(job_id)

    def takes_all(self, limits: Limits) -> bool:
        """Return whether this worker need not ask: what it runs, or has not written the end of, is all that may run.

        Only for a short time after the last query: a lost attempt is ended by other workers, and its end is not reported
        here.
        """
        most = limits.most
        return most is not None and limits.held >= most and self._loop.time() < limits.asked_at + TRUSTED

    def before(self, limits: Limits) -> Counter[Key]:
        """Return what has ended under limits that are now counted again; `claimed` follows, unless the claimer fails."""
        self._take_in()
        self._counting = limits
        return Counter(self._ended.get(limits, ()))

    def claimed(self, limits: Limits, before: Counter[Key], jobs: Sequence[ClaimedJob]) -> None:
        """Take in which jobs a claim has started under limits, which it counted after so many had ended."""
        self._counting = None
        self._held |= {job.id: (limits, job.part) for job in jobs}
        limits.held += len(jobs)
        limits.asked_at = self._loop.time()
        if left := limits.started(jobs, before):
            self._to_notify |= dict.fromkeys(left)
            self._wait()
        ended = self._ended.get(limits)
        if ended is None:
            return
        self._counted.update((limits, key) for key in limits.counted)
        for key in before.keys() & limits.counted.keys():
            ended[key] -= before[key]
            if ended[key] <= 0:
                del ended[key]

    def _pass_on(self) -> None:
        self._timer = None
        self._take_in()
        names, self._to_notify = self._to_notify, {}
        ended, self._ended = self._ended, {}
        counted, self._counted = self._counted, set()
        for limits, keys in ended.items():
            # What has ended since a count is left to the next one, for as long as counts are made; all, if one is under way.
            is_next = self._has_turn and limits is self._counting
            later = Counter({key: n for key, n in keys.items() if is_next or (self._has_turn and (limits, key) in counted)})
            if later:
                self._ended[limits] = later
                self._wait()
            names |= dict.fromkeys(key for key, n in (keys - later).items() if limits.may_be_reached(key, n))
        if names:
            self._notify(names)

    def _wait(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(OWN_TURN if self._has_turn else 0.0, self._pass_on)

"""Notifies other workers of capacity that this worker freed under limits, if they may be waiting for it.

A worker that finds no capacity retries after half a second at the latest. It is notified earlier if a limit was reached
until a job of this worker ended, and this worker, which may use the slot first, does not need it. The count of the next
claim shows this. If no claim follows, as in a worker that is stopping or has no free slot, others are notified unless the
last count showed plenty of capacity.
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
"""Seconds for which this worker may use a slot first, and between two notifications: a commit that notifies takes a lock of
the whole database."""

TRUSTED: Final = 0.1
"""Seconds for which a worker trusts its own count of running jobs."""

Notify: TypeAlias = Callable[[Iterable[Key]], None]


class Freed:
    """Jobs that one worker runs under limits, and those that have ended since the last count.

    `notify`: notifies other workers that these limits may have capacity. If this worker crashes, they find the capacity with
    their next retry.
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
        """Give this worker priority for the slots it frees while it claims in the block."""
        self._has_turn = True
        try:
            yield
        finally:
            self._has_turn, self._counting = False, None
            if self._timer is not None:
                self._timer.cancel()
                self._pass_on()

    def end(self, job_id: Any) -> str | None:
        """Record that a job ended; return its queue key (`queue_key_of`) if it ran under limits, otherwise None."""
        held = self._held.pop(job_id, None)
        if held is None:
            return None
        limits, queue = held
        limits.held -= 1
        # Only counted here, as this runs for each job; the limits are the same for all jobs of a queue.
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
        """Record that all jobs except these have ended, even if no end was reported."""
        for job_id in self._held.keys() - job_ids:
            self.end(job_id)

    def takes_all(self, limits: Limits) -> bool:
        """Return whether this worker alone uses a limit completely, so that it need not be counted.

        Only for a short time after the last count: lost attempts are ended by other workers, which is not reported here.
        """
        most = limits.most
        return most is not None and limits.held >= most and self._loop.time() < limits.asked_at + TRUSTED

    def before(self, limits: Limits) -> Counter[Key]:
        """Return how many jobs ended since the last count; the caller counts next, then calls `claimed` unless it fails."""
        self._take_in()
        self._counting = limits
        return Counter(self._ended.get(limits, ()))

    def claimed(self, limits: Limits, before: Counter[Key], jobs: Sequence[ClaimedJob]) -> None:
        """Record the jobs that a claim started under limits, which were counted after `before` jobs had ended."""
        self._counting = None
        self._held |= {job.id: (limits, job.queue_key) for job in jobs}
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
            # Jobs that ended since a count are left to the next count while claims continue; all of them during a count.
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

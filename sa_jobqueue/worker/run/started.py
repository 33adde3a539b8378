"""Which attempts a worker has started, in bounded memory."""

from __future__ import annotations

from collections import deque
from datetime import datetime
from typing import Final

from sa_jobqueue.context import ClaimedJob
from sa_jobqueue.types import JobId

_MOST: Final = 5_000
"""How many attempts are remembered: about 1.5 MB."""


class StartedAttempts:
    """The attempts that a worker has started.

    The latest `most` are remembered. One that was claimed no later than an attempt that is forgotten, by the database's
    clock, counts as started. So no attempt that was started is taken for one that was not.
    """

    def __init__(self, most: int = _MOST) -> None:
        self._latest: deque[tuple[JobId, int, datetime]] = deque(maxlen=most)
        self._forgotten_until: datetime | None = None

    def add(self, job: ClaimedJob) -> None:
        """Remember an attempt."""
        latest = self._latest
        if len(latest) == latest.maxlen and (self._forgotten_until is None or latest[0][2] > self._forgotten_until):
            self._forgotten_until = latest[0][2]
        latest.append((job.id, job.attempt, job.started_at))

    def __contains__(self, job: ClaimedJob) -> bool:
        # Walked through: only the rare orphan is looked for, and each attempt is added.
        is_forgotten = self._forgotten_until is not None and job.started_at <= self._forgotten_until
        return is_forgotten or any((job.id, job.attempt) == latest[:2] for latest in self._latest)

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
        self._most = most
        self._attempts: set[tuple[JobId, int]] = set()
        self._oldest_first: deque[tuple[JobId, int, datetime]] = deque()
        self._forgotten_until: datetime | None = None

    def add(self, job: ClaimedJob) -> None:
        """Remember an attempt."""
        self._attempts.add((job.id, job.attempt))
        self._oldest_first.append((job.id, job.attempt, job.started_at))
        if len(self._oldest_first) > self._most:
            job_id, attempt, started_at = self._oldest_first.popleft()
            self._attempts.discard((job_id, attempt))
            if self._forgotten_until is None or started_at > self._forgotten_until:
                self._forgotten_until = started_at

    def __contains__(self, job: ClaimedJob) -> bool:
        is_forgotten = self._forgotten_until is not None and job.started_at <= self._forgotten_until
        return is_forgotten or (job.id, job.attempt) in self._attempts

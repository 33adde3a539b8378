"""A worker's statements, as steps of operations."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Row
from sqlalchemy.orm import Session

from sa_jobqueue import Job
from sa_jobqueue.operations.workers import Rescued
from tests.fixtures.workers import ManualWorker


class SessionWorker(ManualWorker):
    """A worker on the session of an operation: every commit is left to the operation, or to the explorer.

    Give the operation `settings=GUARDS`, as a worker's connection has them; and a queue that only this schedule has, or
    it claims what earlier ones left.
    """

    def __init__(self, session: Session, worker_id: str, *, queues: tuple[str, ...] = ("default",)) -> None:
        self._session = session
        self.worker_id = worker_id
        self.model = Job
        self.queues = queues
        self.reset()

    @property
    def connection(self) -> Connection:  # type: ignore[override]
        """Return the connection of the session's transaction, of which each commit begins another."""
        return self._session.connection()

    def claim(self, *arguments: Any, **options: Any) -> list[Row[Any]]:
        """Claim as `Hands`, without a commit."""
        return super().claim(*arguments, **options | {"commit": False})

    def rescue(self, **options: Any) -> list[Rescued]:
        """Rescue as `Hands`, without a commit."""
        return super().rescue(**options | {"commit": False})

    def _end(self, ids: set[Any], commit: bool) -> set[Any]:
        return ids

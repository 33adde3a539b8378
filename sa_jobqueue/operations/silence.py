"""The visible state of the sessions of workers that send no heartbeats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy.orm import Session

from sa_jobqueue.db.sessions import application_name
from sa_jobqueue.display.printable import span
from sa_jobqueue.operations.workers import WorkerStatus
from sa_jobqueue.statements import sessions


@dataclass(frozen=True, slots=True)
class Silence:
    """A worker without a heartbeat, and its sessions, as pg_stat_activity showed them."""

    worker: WorkerStatus
    is_connected: bool | None
    """None if a live worker has the same name, so that the sessions may be its."""
    idle_for: timedelta | None = None
    """Time since the last statement of its sessions; None if it is not visible to this role."""

    @property
    def is_failing(self) -> bool:
        """Whether it runs statements, though its heartbeats do not arrive."""
        return bool(self.is_connected) and self.idle_for is not None and self.idle_for < self.worker.silent_for / 2

    @property
    def description(self) -> str:
        """Return the state of its sessions as text."""
        if self.is_connected is None:
            return "killed, frozen, or disconnected"
        if not self.is_connected:
            return "no session of it is visible to this role: killed, disconnected, or behind a pooler"
        if self.idle_for is None:
            return "connected; its statements are not visible to this role"
        cause = "its heartbeats fail" if self.is_failing else "frozen, or disconnected without notice"
        return f"connected, its last statement {span(self.idle_for)} ago: {cause}"


def list_silent(session: Session, workers: Sequence[WorkerStatus], heartbeat_timeout: timedelta) -> list[Silence]:
    """Return the workers without a heartbeat within the timeout, with the visible state of their sessions. Locks: none."""
    live = {worker.name for worker in workers if worker.silent_for <= heartbeat_timeout}
    silent = [worker for worker in workers if worker.silent_for > heartbeat_timeout]
    if not silent:
        return []
    name_of = {worker.id: application_name(worker.name) for worker in silent}
    rows = session.execute(sessions.connected(), {"names": sorted(set(name_of.values()))}).all()
    idle_for = {row.name: row.idle_for for row in rows}
    return [
        Silence(
            worker,
            None if worker.name in live else name_of[worker.id] in idle_for,
            idle_for.get(name_of[worker.id]),
        )
        for worker in silent
    ]

"""Signals between the parts of a worker. One place, `assembly`, lists their receivers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, ParamSpec

from sa_jobqueue.context import ClaimedJob

P = ParamSpec("P")

Hints = Collection[str] | None
"""The payloads of notifications; None: anything may have changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TickResult:
    """Result of a tick, see `statements.ticks`. The defaults are those of one that failed: components look themselves."""

    now: datetime | None = None
    lost_in: float | None = 0.0
    has_expired: bool = True
    has_ended_chains: bool = True
    has_arrivals: bool = True
    settings: str | None = ""
    schedule_in: float | None = 0.0
    running_jobs: int = 0
    has_orphans: bool | None = True
    is_ahead: bool | None = True
    has_leftovers: bool | None = True
    unknown_types: Sequence[str] | None = None
    unserved_queues: Sequence[str] | None = None


class Signal(Generic[P]):
    """Calls its receivers, in the order in which they were connected. Used on the worker's loop."""

    def __init__(self) -> None:
        self._receivers: list[Callable[P, object]] = []

    def connect(self, *receivers: Callable[P, object]) -> None:
        """Add receivers."""
        self._receivers += receivers

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Call all receivers."""
        for receive in self._receivers:
            receive(*args, **kwargs)


class Signals:
    """The signals of one worker."""

    def __init__(self) -> None:
        self.ticked = Signal[[TickResult]]()
        """The worker has sent a heartbeat, and learnt what there is to do."""
        self.clock_set = Signal[[]]()
        """The database's clock was set."""
        self.due = Signal[[Hints]]()
        """A queue may have due jobs."""
        self.may_start = Signal[[]]()
        """A job may be able to start that could not before: one was rescheduled, or settings have changed."""
        self.ended = Signal[[ClaimedJob | None]]()
        """An attempt has ended here or was lost, or (None) a job that was not running: others of its ordering key or under
        its limits may start."""
        self.suspected = Signal[[Hints]]()
        """Attempts of these jobs may have been lost."""
        self.rules_changed = Signal[[]]()
        """Settings or schedules were changed in the database."""
        self.chains_ended = Signal[[]]()
        """Chains have ended whose dependants may still be blocked."""
        self.reconnected = Signal[[]]()
        """The claimer has a new connection, which may lead to another server."""

"""The state of one attempt in this process."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from sa_jobqueue.context import AttemptContext, Blockers, ClaimedJob
from sa_jobqueue.types import CancelReason, JobStatus


@dataclass(slots=True, eq=False)
class Running:
    """One attempt in this process."""

    job: ClaimedJob
    context: AttemptContext = field(init=False)
    task: asyncio.Task[None] = field(init=False)
    begun: bool = False
    """Whether its task has started: a task cancelled before that would end silently."""
    started: float = 0.0
    """When it started, by the monotonic clock."""
    deadline: asyncio.TimerHandle | None = None
    timeout: timedelta | None = None
    """Its timeout, in total or since the last extension; None: no timeout."""
    arguments: tuple[Any, ...] = ()
    """The decoded payload; empty if the handler takes none."""
    blockers: Blockers[Any] | None = None
    stopping: CancelReason | None = None
    """Why it should stop; None while it runs."""
    ended: JobStatus | None = None
    """How its handler's own commit ended the job; None before that commit. A job that it deleted counts as cancelled."""

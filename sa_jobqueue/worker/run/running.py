"""One attempt in this process, as whoever runs it keeps it."""

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
    """Whether its task has run: one that is cancelled before would end without a word."""
    started: float = 0.0
    """When it has begun, by the loop's clock."""
    deadline: asyncio.TimerHandle | None = None
    timeout: timedelta | None = None
    """How long it was given, in all or by the last extension; None is without end."""
    blockers: Blockers[Any] | None = None
    stopping: CancelReason | None = None
    """Why it should stop; None while it runs."""
    ended: JobStatus | None = None
    """How its handler's own commit ended the job; None before that commit. A job that it deleted counts as cancelled."""

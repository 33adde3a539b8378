"""`job_minute`: the main figures of each of the last 24 hours' minutes, by queue and job type."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from sqlalchemy import Integer, Text
from sqlalchemy.dialects.postgresql import ARRAY, TIMESTAMP
from sqlalchemy.orm import Mapped, mapped_column

from sa_jobqueue.models.base import Companion

BOUNDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
"""Upper bounds of the histogram buckets for waits and durations, in seconds."""


class MinuteMixin(Companion):
    """Figures of one minute, of a queue and a job type; with both names empty, of all together.

    One worker writes each minute, idle workers half an hour together, and deletes those that are older than a day. Counts
    come from bounded reads: of a minute with more than 50,000 changed jobs they are lower bounds. Retention keeps the jobs
    that ended in a minute until it is recorded; jobs that are deleted earlier, by a call or a run until idle, do not count.
    """

    minute: Mapped[datetime] = mapped_column(TIMESTAMP(timezone=True), nullable=False)
    """Start of the minute, by the database's clock."""
    queue: Mapped[str] = mapped_column(Text, nullable=False)
    """Name of the queue; empty for all."""
    type_name: Mapped[str] = mapped_column(Text, nullable=False)
    """Name of the job type; empty for all."""
    enqueued: Mapped[int] = mapped_column(Integer, nullable=False)
    """Jobs enqueued in the minute."""
    completed: Mapped[int] = mapped_column(Integer, nullable=False)
    """Jobs completed."""
    failed: Mapped[int] = mapped_column(Integer, nullable=False)
    """Attempts that failed, timed out, or were lost."""
    died: Mapped[int] = mapped_column(Integer, nullable=False)
    """Jobs that became dead letters."""
    cancelled: Mapped[int] = mapped_column(Integer, nullable=False)
    """Jobs cancelled."""
    due: Mapped[int] = mapped_column(Integer, nullable=False)
    """Due jobs at the end of the minute."""
    running: Mapped[int] = mapped_column(Integer, nullable=False)
    """Running jobs at the end of the minute."""
    wait: Mapped[list[int]] = mapped_column(ARRAY(Integer), nullable=False)
    """Ended jobs by the time from due to the last start: a number for each of `BOUNDS`, and one for longer."""
    run: Mapped[list[int]] = mapped_column(ARRAY(Integer), nullable=False)
    """Ended jobs by the duration of their last attempt, as `wait`."""

    __key__ = ("minute", "queue", "type_name")

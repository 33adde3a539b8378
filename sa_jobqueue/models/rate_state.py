"""`rate_state`: the starts counted by the rates of queues and job types."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar

from sqlalchemy import BigInteger, Boolean, Double, Text, text
from sqlalchemy.dialects.postgresql import TIMESTAMP
from sqlalchemy.orm import Mapped, mapped_column

from sa_jobqueue.models.base import Companion, within_times


class RateStateMixin(Companion):
    """State of one rate limit: a row per queue, fairness key or job type, created by the first claim under the limit.

    It is written under the lock of the row that has the rate, and is kept when the rate changes: the new rate continues from
    it. The version is part of the key, so the newest state is the first entry from the end: a read passes none of the dead
    row versions, of which each claim leaves one while a transaction holds vacuum back.
    """

    is_type: Mapped[bool] = mapped_column(Boolean, nullable=False)
    """Whether the limit is that of a job type; otherwise it is that of a queue or fairness key."""
    name: Mapped[str] = mapped_column(Text, nullable=False)
    """Name of the queue or job type."""
    fairness_key: Mapped[str] = mapped_column(Text, nullable=False, server_default=text("''"))
    """Fairness key within the queue; empty for the whole queue or for a job type."""
    version: Mapped[int] = mapped_column(BigInteger, nullable=False, server_default=text("1"), autoincrement=False)
    """Number of times it was written."""
    tokens: Mapped[float | None] = mapped_column(Double)
    """Content of the token bucket as of `spent_at`; null when it is full."""
    spent_at: Mapped[datetime] = mapped_column(TIMESTAMP(timezone=True), nullable=False)
    """When a claim last recorded its starts."""

    __key__ = ("is_type", "name", "fairness_key", "version")
    __checks__: ClassVar = {
        "ck_rate_state_version": "version BETWEEN 1 AND 1000000000000000000",
        "ck_rate_state_tokens": "abs(tokens) <= 1e15",
        "ck_rate_state_times": within_times("spent_at"),
    }

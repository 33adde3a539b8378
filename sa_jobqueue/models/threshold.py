"""`threshold`: the thresholds of the health report that operators have set."""

from __future__ import annotations

from typing import ClassVar

from sqlalchemy import Double, Text, text
from sqlalchemy.orm import Mapped, mapped_column

from sa_jobqueue.models.base import Companion


class ThresholdMixin(Companion):
    """A threshold of the health report that is not the default, for all queues or for one of them."""

    name: Mapped[str] = mapped_column(Text, nullable=False)
    """Its name, a field of `Thresholds`."""
    queue: Mapped[str] = mapped_column(Text, nullable=False, server_default=text("''"))
    """The queue that it applies to; empty for all others."""
    value: Mapped[float] = mapped_column(Double, nullable=False)
    """Its value; of durations in seconds."""

    __key__ = ("name", "queue")
    __checks__: ClassVar = {"ck_threshold_value": "value > 0 AND value <= 1e13"}

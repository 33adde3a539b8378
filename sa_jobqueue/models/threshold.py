"""`threshold`: the thresholds of the health report that operators have set."""

from __future__ import annotations

from typing import Any

from sqlalchemy import CheckConstraint, Double, PrimaryKeyConstraint, Text, text
from sqlalchemy.orm import Mapped, declared_attr, mapped_column
from sqlalchemy.sql.elements import conv

from sa_jobqueue.models.base import Companion


class ThresholdMixin(Companion):
    """A threshold of the health report that is not the default, for all queues or for one of them."""

    name: Mapped[str] = mapped_column(Text, nullable=False)
    """Its name, a field of `Thresholds`."""
    queue: Mapped[str] = mapped_column(Text, nullable=False, server_default=text("''"))
    """The queue that it applies to; empty for all others."""
    value: Mapped[float] = mapped_column(Double, nullable=False)
    """Its value; of durations in seconds."""

    @declared_attr.directive
    def __table_args__(cls) -> tuple[Any, ...]:
        name = cls.__jobqueue__.name
        return (
            PrimaryKeyConstraint("name", "queue", name=conv(name("pk_threshold"))),
            CheckConstraint("value > 0 AND value <= 1e13", name=conv(name("ck_threshold_value"))),
            {"schema": cls.__jobqueue__.schema},
        )

"""The application whose jobs Spark enqueues."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sa_jobqueue import JobQueue

jobs: JobQueue[Any] = JobQueue()


@dataclass(frozen=True, slots=True)
class Order:
    """As `rows.payload`."""

    number: int
    order_id: str


@jobs.handler("checked")
def checked(payload: Order) -> None:
    """Do nothing."""

"""An application whose handlers take mapped objects: executors import it by its name."""

from __future__ import annotations

from typing import Any

from sqlalchemy.orm import Session

from sa_jobqueue import JobQueue
from tests.fixtures.shop import Order

jobs: JobQueue[Any] = JobQueue()


@jobs.handler("ship")
def ship(order: Order, session: Session) -> None:
    """Ship the order."""
    order.status = f"shipped, {order in session}"


@jobs.keyword_handler("remind")
def remind(order: Order, note: str, session: Session) -> None:
    """Note the reminder."""
    order.status = f"reminded, {note}"

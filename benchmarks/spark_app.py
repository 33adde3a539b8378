"""The application whose jobs Spark enqueues and runs: executors import it by its name."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Final

from sa_jobqueue import JobQueue

jobs: JobQueue[Any] = JobQueue()
_SECONDS: Final = 0.02


@dataclass(frozen=True, slots=True)
class Order:
    """As `rows.payload`."""

    number: int
    order_id: str


@jobs.handler("checked")
def checked(payload: Order) -> None:
    """Do nothing."""


@jobs.handler("waiting")
def waiting() -> None:
    """Wait as for a network."""
    time.sleep(_SECONDS)


@jobs.handler("computing")
def computing() -> None:
    """Use a core."""
    until = time.thread_time() + _SECONDS
    while time.thread_time() < until:
        pass

"""An application whose jobs are written in bulk: executors import it by its name."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sa_jobqueue import JobQueue
from sa_jobqueue.types import Json

jobs: JobQueue[Any] = JobQueue()


@dataclass
class Mail:
    """A typed payload, in its second version."""

    to: str
    copies: int = 1


@jobs.handler("mail", queue="mails", priority=3, max_attempts=4, timeout=timedelta(minutes=1), version=2, rate_cost=5)
def mail(payload: Mail) -> None:
    """Send nothing."""


@mail.upcast(1)
def name_the_recipient(old: dict[str, Any]) -> dict[str, Any]:
    """Bring the first version up to the second."""
    return {"to": old["recipient"]}


@jobs.handler("raw")
def raw(payload: dict[str, Any]) -> None:
    """Do nothing."""


class Reversed:
    """A codec that anyone can undo."""

    name = "reversed"

    def encode(self, data: bytes) -> Json:
        """Turn the text around."""
        return data.decode()[::-1]

    def decode(self, stored: Json) -> bytes:
        """Turn it back."""
        assert isinstance(stored, str)
        return stored[::-1].encode()


@jobs.handler("letter", codec=Reversed())
def letter(payload: Mail) -> None:
    """Send nothing."""


@jobs.handler("parcel", fairness_by="to")
def parcel(payload: Mail) -> None:
    """Send nothing."""

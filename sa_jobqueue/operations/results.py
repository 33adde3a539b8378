"""What every operation on many rows returns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class BulkResult(Generic[T]):
    """The rows that one call changed, and the position of the next call.

    Iterating it gives the ids. An operation with a `limit` changes one page a call:

        result = redrive_dead_letters(session, by="ann")
        session.commit()
        while result.next is not None:
            result = redrive_dead_letters(session, by="ann", after=result.next)
            session.commit()
    """

    ids: list[T]
    """The ids of the rows changed; of queues, job types and schedules, the names."""
    matched: int
    """Number of rows that the call was about: those changed, and those that needed no change."""
    next: Any = None
    """The `after` of the next call; None if there is nothing left, and for operations without a `limit`."""

    @property
    def changed(self) -> int:
        """Number of rows changed."""
        return len(self.ids)

    def __iter__(self) -> Iterator[T]:
        return iter(self.ids)

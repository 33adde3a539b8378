"""The cases of statements, and their parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy.sql.elements import ClauseElement

NOBODY = UUID(int=0)
BATCH = 100
PK = frozenset({"pk_job"})


@dataclass(frozen=True)
class World:
    """The rows of a database that statements refer to."""

    running: Sequence[UUID]
    """Jobs that `WORKER` runs, sorted."""
    pending: Sequence[UUID]
    """Some pending jobs, sorted."""
    waiting: Sequence[UUID]
    """Some blocked jobs, sorted."""
    now: datetime
    """The database's clock."""


@dataclass(frozen=True)
class Case:
    """One statement."""

    name: str
    build: Callable[[], ClauseElement]
    indexes: frozenset[str]
    """Of the job table: all that its plan may read it by."""
    parameters: Callable[[World], dict[str, Any]] = lambda world: {}
    guarded: bool = True
    """Whether it runs on a worker's own connections."""
    examines: int = 0
    """How many rows it reads by design, where that is more than it returns."""

"""The cases of statements, and their parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy.sql.elements import ClauseElement

from tests.fixtures.jobs import WORKER

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
    table_oid: int
    """Of the job table."""


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


def complete_one_parameters(world: World, output: str | None) -> dict[str, Any]:
    """Give the parameters that complete a first attempt in its handler's session."""
    attempt = {"job_id": world.running[0], "job_attempt": 1, "worker_id": WORKER}
    return attempt | {"job_output": output, "table_oid": world.table_oid}

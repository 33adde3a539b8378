"""Tracks when the next job is due, and asks the database only when that may have changed."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection

from sa_jobqueue.db.compiled import compiled
from sa_jobqueue.models import JobMixin
from sa_jobqueue.statements import claims


class NextDue:
    """What a worker that sleeps knows of the jobs to come.

    It asks once until something is told, where it is told: an insert of a job for later is. One that comes without a word is
    found by the poll after it is due, as ever.
    """

    def __init__(self, model: type[JobMixin[Any]]) -> None:
        self._loop = asyncio.get_running_loop()
        self._statement = compiled(claims.next_due, model)
        self._at: float | None = None
        self._changes = 0
        self.is_told: Callable[[], bool] = lambda: False
        """Whether inserts of jobs are told right now."""

    def forget(self) -> None:
        """Ask again: something was told, or other lanes count now."""
        self._changes += 1
        self._at = None

    async def seconds(self, connection: AsyncConnection, lanes: Mapping[str, Any], since: datetime | None) -> float:
        """Return in how many seconds the next job is due; infinite where none is.

        `since`: when the last claim looked, by the database's clock; None for now. What has become due after that counts.
        """
        if self._at is None or self._at <= self._loop.time() or not self.is_told():
            changes = self._changes
            ((due_in,),) = await self._statement.execute(connection, {**lanes, "since": since})
            if changes != self._changes:
                return 0.0  # what was told meanwhile may be due sooner
            self._at = self._loop.time() + (math.inf if due_in is None else max(due_in, 0.001))
        return self._at - self._loop.time()

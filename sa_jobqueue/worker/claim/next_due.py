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
    """When the next job is due, as far as a sleeping worker knows.

    While inserts of scheduled jobs are notified, it queries once and then waits for a notification. A job whose insert is
    not notified is found by the poll after it is due.
    """

    def __init__(self, model: type[JobMixin[Any]]) -> None:
        self._loop = asyncio.get_running_loop()
        self._statement = compiled(claims.next_due, model)
        self._at: float | None = None
        self._changes = 0
        self.is_told: Callable[[], bool] = lambda: False
        """Whether inserts of jobs are notified right now."""

    def forget(self) -> None:
        """Query again: a notification has arrived, or the lanes have changed."""
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
                return 0.0  # a job that was notified meanwhile may be due sooner
            self._at = self._loop.time() + (math.inf if due_in is None else max(due_in, 0.001))
        return self._at - self._loop.time()

"""Gives attempts more time: their deadline here at once, their lease in the database as soon as it answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from sa_jobqueue.models import JobMixin
from sa_jobqueue.statements import leases
from sa_jobqueue.types import JobId
from sa_jobqueue.worker.run.running import Running


class Extender:
    """Extends leases, each fenced. An outage delays it; an attempt that is not the worker's any more is stopped."""

    def __init__(
        self,
        engine: AsyncEngine,
        model: type[JobMixin[Any]],
        *,
        worker_id: str,
        grace: timedelta,
        is_running: Callable[[Running], bool],
        set_deadline: Callable[[Running, timedelta], None],
        on_lost: Callable[[JobId], Awaitable[None]],
    ) -> None:
        self._engine = engine
        self._statement = leases.extend(model)
        self._given = {"worker_id": worker_id, "grace": grace}
        self._is_running = is_running
        self._set_deadline = set_deadline
        self._on_lost = on_lost

    async def extend(self, running: Running, timeout: timedelta) -> None:
        """Let an attempt run for `timeout` from now."""
        if not self._is_running(running) or running.stopping is not None:
            return
        job = running.job
        self._set_deadline(running, timeout)
        given = self._given | {"job_id": job.id, "job_attempt": job.attempt, "extension": timeout}
        while self._is_running(running) and running.timeout is timeout:
            try:
                async with self._engine.connect() as connection:
                    result = await connection.execute(self._statement, given)
            except DBAPIError:
                await asyncio.sleep(1)  # an outage; the attempt may well outlive it
                continue
            if result.first() is None:
                await self._on_lost(job.id)
            return

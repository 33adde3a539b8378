"""Stops attempts that this worker has lost, once the database has confirmed it."""

from __future__ import annotations

import asyncio
from typing import Any

from sqlalchemy.ext.asyncio import AsyncEngine

from sa_jobqueue.db.compiled import compiled
from sa_jobqueue.models import JobMixin
from sa_jobqueue.statements import leases
from sa_jobqueue.worker.background.listener import Hints
from sa_jobqueue.worker.component import Component
from sa_jobqueue.worker.run.executor import Executor


class Verifier(Component):
    """Checks, after a notification of cancelled or rescued jobs, which of their attempts are still this worker's.

    One read at a time, for all suspected jobs; ids that are not running here cost none. Woken by `suspect`. A crash loses
    nothing: the next run reads again. One per worker.
    """

    name = "verifier"

    def __init__(self, engine: AsyncEngine, model: type[JobMixin[Any]], executor: Executor, *, worker_id: str) -> None:
        self._engine = engine
        self._executor = executor
        self._worker_id = worker_id
        self._owned = compiled(leases.owned, model)
        self._suspected: set[str] = set()
        self._suspects_all = False
        self._woken = asyncio.Event()

    def suspect(self, job_ids: Hints) -> None:
        """Verify the attempts of these jobs; None: all that are running."""
        self._suspects_all = self._suspects_all or job_ids is None
        running = {str(job_id) for job_id, _ in self._executor.attempts}
        self._suspected |= running.intersection(job_ids or ())
        if self._suspects_all or self._suspected:
            self._woken.set()

    async def run(self) -> None:
        """Verify until cancelled."""
        while True:
            await self._woken.wait()
            await self.verify()

    async def verify(self) -> None:
        """Read once, and stop the attempts that are lost. A failed read is repeated by the next run."""
        self._woken.clear()  # before reading: later suspicions are read again
        (suspected, self._suspected), (is_all, self._suspects_all) = (self._suspected, set()), (self._suspects_all, False)
        attempts = {one for one in self._executor.attempts if is_all or str(one[0]) in suspected}
        if not attempts:
            return
        given = {"worker_id": self._worker_id, "ids": [job_id for job_id, _ in attempts]}
        try:
            async with self._engine.connect() as connection:
                owned = {(job_id, attempt) for job_id, attempt in await self._owned.execute(connection, given)}
        except BaseException:
            self._suspected |= {str(job_id) for job_id, _ in attempts}
            self._woken.set()
            raise
        self._executor.stop_lost(attempts - owned)

"""Reads the spans that an attempt's own is linked to."""

from __future__ import annotations

from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from sa_jobqueue import tracing
from sa_jobqueue.context import ClaimedJob
from sa_jobqueue.models import JobClass
from sa_jobqueue.registry.job_types import JobType
from sa_jobqueue.statements import traces


class Linker:
    """Reads with a separate statement, and only for a handler or a recorded span."""

    def __init__(self, engine: AsyncEngine, model: JobClass) -> None:
        self._engine = engine
        self._linked = traces.linked(model)

    async def link(self, job: ClaimedJob, job_type: JobType) -> None:
        """Link the current span, for a second attempt or a handler that takes blockers; others cost no round trip.

        An outage costs the links, not the attempt.
        """
        if job.attempt == 1 and job_type.blockers is None:
            return
        try:
            async with self._engine.connect() as connection:
                rows = (await connection.execute(self._linked, {"job_id": job.id})).all()
        except DBAPIError:
            return
        for kind, traceparent in rows:
            tracing.link(traceparent, kind)

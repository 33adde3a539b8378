"""Links an attempt's span to what it comes after: the attempt that failed before it, and the chains that it waited for."""

from __future__ import annotations

from typing import Any

from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from sa_jobqueue import tracing
from sa_jobqueue.context import ClaimedJob
from sa_jobqueue.models import JobMixin
from sa_jobqueue.registry import JobType
from sa_jobqueue.statements import traces


class Linker:
    """Reads what is needed with a statement of its own, and only for an attempt whose span is recorded."""

    def __init__(self, engine: AsyncEngine, model: type[JobMixin[Any]]) -> None:
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

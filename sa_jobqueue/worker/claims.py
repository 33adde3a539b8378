"""The claim's statements, as one worker runs them: what they are given, and what its floors learn of what came."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection

from sa_jobqueue.context import ClaimedJob
from sa_jobqueue.models import JobMixin
from sa_jobqueue.statements import claims
from sa_jobqueue.worker.choosing import ChosenGroup
from sa_jobqueue.worker.compiled import Compiled, compiled
from sa_jobqueue.worker.floors import Reading, most_behind
from sa_jobqueue.worker.groups import Group


class Claims:
    """Claims for one worker. `grace`: what its jobs' leases are longer than their timeouts; `clock`: monotonic seconds."""

    def __init__(
        self,
        model: type[JobMixin[Any]],
        *,
        worker_id: str,
        grace: timedelta,
        clock: Callable[[], float],
    ) -> None:
        self._model = model
        # Before there is a job to wait for it; the others where something is shared.
        self._statements = {behind: self._statement(behind=behind, is_shared=False) for behind in (False, True)}
        self._given = {"worker_id": worker_id, "grace": grace}
        self._clock = clock
        self.began_at: datetime | None = None
        """When the first claim since this was last forgotten looked, by the database's clock."""

    def _statement(self, *, behind: bool, is_shared: bool) -> Compiled:
        return compiled(claims.claim, self._model, changed=behind, shared=is_shared)

    async def take(
        self, connection: AsyncConnection, group: Group, limit: int, *, behind: bool, reading: Reading | None
    ) -> list[ClaimedJob]:
        """Claim up to `limit` jobs of a group, and move its floors.

        Raises: TooHeavyError before the floors have moved; whatever else is raised drops them.
        """
        floors, started = group.floors, self._clock()
        given = {**self._given, "types": group.types, "limit": limit}
        if isinstance(group, ChosenGroup):
            return await group.claim(connection, given)
        given |= floors.parameters(changed=behind, reading=reading)
        if reading is not None:
            given["most_behind"] = most_behind(limit)
        try:
            statement = self._statements[behind] if reading is None else self._statement(behind=behind, is_shared=True)
            rows = await statement.execute(connection, given)
        except BaseException:
            floors.reset(self._clock())
            raise
        self.began_at = self.began_at or rows[0][0]
        # By position: what follows the claim's own three columns is CLAIMED, the fields of ClaimedJob in order.
        jobs = [ClaimedJob._make(row[3:]) for row in rows if row[3] is not None]
        if group.limits is not None:
            group.limits.rates.weigh(jobs)
        floors.advance(
            [(job.queue, job.priority, job.scheduled_at, job.id) for job in jobs],
            limit=limit,
            changed=behind,
            database_now=rows[0][0],
            snapshot=(rows[0][1], rows[0][2]),
            started=started,
            now=self._clock(),
            reading=reading,
        )
        return jobs

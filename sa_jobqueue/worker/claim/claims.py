"""The claim, as one worker runs it; and which jobs the database refuses to start."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from sa_jobqueue.context import ClaimedJob
from sa_jobqueue.db.compiled import compiled, plain
from sa_jobqueue.db.splitting import in_parts
from sa_jobqueue.errors.drivers import diagnose
from sa_jobqueue.models import JobMixin
from sa_jobqueue.models.base import lowest_id
from sa_jobqueue.statements import claims
from sa_jobqueue.worker.claim.cursors import START, Allocation, Cursors, Lane, Plan, Segment
from sa_jobqueue.worker.claim.limits import transaction
from sa_jobqueue.worker.claim.partitions import Partition

MOST_TRIED: Final = 5000
"""Jobs that are tried to find those that cannot be started."""
_CHECK_NOW: Final = plain("SET CONSTRAINTS ALL IMMEDIATE")


class _UndoneError(Exception):
    """Rolls a trial back."""


class Claims:
    """Runs claims for one worker. `grace`: what its jobs' leases are longer than their timeouts."""

    def __init__(self, model: type[JobMixin[Any]], *, worker_id: str, grace: timedelta) -> None:
        self._model = model
        self._claim = compiled(claims.claim, model)
        self._remaining = compiled(claims.remaining, model)
        self._given = {"worker_id": worker_id, "grace": grace}
        self.excluded: Collection[Any] = ()
        """Ids of jobs that are left as they are, since the database refuses to start them."""

    async def take(self, connection: AsyncConnection, parameters: Mapping[str, Any]) -> tuple[list[ClaimedJob], datetime]:
        """Start the jobs of a plan, given as parameters; return them, and the database's `now()`."""
        rows = await self._claim.execute(connection, {**parameters, **self._given})
        # By position: what follows the claim's own column is CLAIMED, the fields of ClaimedJob in order.
        return [ClaimedJob._make(row[1:]) for row in rows if row[1] is not None], rows[0][0]

    async def remaining(self, connection: AsyncConnection, lanes: Iterable[Lane], types: Sequence[str]) -> bool:
        """Return whether a claim from the start of these lanes would start a job, or a chain's end was not passed on."""
        of_lanes = dict.fromkeys(lane._replace(type_name="") for lane in lanes)
        given = self._from_start(Plan([Allocation(types, 1, [Segment(list(of_lanes), 1)])], {}, 1))
        ((is_due, has_chains_to_unblock),) = await self._remaining.execute(connection, given)
        return bool(is_due or has_chains_to_unblock)

    async def refused(
        self, connection: AsyncConnection, lanes: Mapping[Partition, Sequence[Lane]], limit: int
    ) -> list[tuple[Any, Exception]]:
        """Return jobs that the database refuses to start, of up to `limit` due ones of each lane, each with its error.

        To find them they are started, in parts, in transactions that are rolled back. Those excluded already are left out.
        Locks: the jobs, while they are tried. At most `MOST_TRIED` are.
        """
        allocations = [
            Allocation(one.types, MOST_TRIED, [Segment([lane], limit + len(self.excluded)) for lane in of])
            for one, of in lanes.items()
        ]
        given = self._from_start(Plan(allocations, {}, MOST_TRIED), self.excluded)
        rows = await compiled(claims.candidates, self._model, inputs=False).execute(connection, given)
        xids = {row[2]: row[1] for row in rows if row[2] is not None}
        types = sorted({name for one in lanes for name in one.types})

        async def try_to_start(ids: Sequence[Any]) -> None:
            by_id = Plan([Allocation(types, 0, [])], {job_id: xids[job_id] for job_id in ids}, len(ids))
            with suppress(_UndoneError):
                async with transaction(connection):
                    try:
                        await self.take(connection, self._from_start(by_id))
                        await _CHECK_NOW.execute(connection, {})
                    except Exception as error:
                        if not is_of_ordering(error):
                            raise
                    raise _UndoneError

        _, refused = await in_parts(list(xids), try_to_start)
        return refused

    def _from_start(self, plan: Plan, excluded: Collection[Any] = ()) -> dict[str, Any]:
        cursors = Cursors((), lowest_id(self._model.__jobqueue__))
        for allocation in plan.allocations:
            for segment in allocation.segments:
                for lane in segment.lanes:
                    cursors.lower(lane, START)
        return cursors.parameters(plan, excluded)


def is_of_ordering(error: Exception) -> bool:
    """Return whether another claim has just started a job of the same ordering key, which this one could not see."""
    return isinstance(error, IntegrityError) and (diagnose(error).constraint or "").endswith("uq_job_ordering")

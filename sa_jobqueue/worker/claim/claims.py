"""Claims: from open lanes, as a selector chooses, or under limits across workers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, Final

from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from sa_jobqueue.context import ClaimedJob
from sa_jobqueue.db.compiled import compiled, plain
from sa_jobqueue.db.splitting import in_parts
from sa_jobqueue.errors.drivers import diagnose
from sa_jobqueue.models import JobClass
from sa_jobqueue.models.base import lowest_id
from sa_jobqueue.policies.fairness import QueueKey
from sa_jobqueue.registry.selectors import Candidate
from sa_jobqueue.statements import claims
from sa_jobqueue.worker.claim.cursors import START, Cursors, Lane, Plan, Segment
from sa_jobqueue.worker.claim.lanes import Lanes
from sa_jobqueue.worker.claim.limits import FULL, Limits, transaction
from sa_jobqueue.worker.claim.partitions import Partition
from sa_jobqueue.worker.claim.planner import Shares
from sa_jobqueue.worker.claim.rates import RepeatClaimError
from sa_jobqueue.worker.claim.selectors import Selection

MOST_TRIED: Final = 5000
"""Jobs that are tried to find those that cannot be started."""
_CHECK_NOW: Final = plain("SET CONSTRAINTS ALL IMMEDIATE")


class _UndoneError(Exception):
    """Rolls a trial back."""


class Claims:
    """Runs the statements of claims for one worker. `grace`: how much longer than its timeout the lease of a job is."""

    def __init__(self, model: JobClass, *, worker_id: str, grace: timedelta) -> None:
        self._model = model
        self._claim = compiled(claims.claim, model)
        self._given = {"worker_id": worker_id, "grace": grace}
        self.excluded: Collection[Any] = ()
        """Ids of jobs that are left as they are, since the database refuses to start them."""

    async def take(self, connection: AsyncConnection, parameters: Mapping[str, Any]) -> tuple[list[ClaimedJob], datetime]:
        """Start the jobs of a plan, given as parameters; return them, and the database's `now()`."""
        rows = await self._claim.execute(connection, {**parameters, **self._given})
        # By position: what follows the claim's own column is CLAIMED, the fields of ClaimedJob in order.
        return [ClaimedJob._make(row[1:]) for row in rows if row[1] is not None], rows[0][0]

    async def refused(
        self, connection: AsyncConnection, lanes: Mapping[Partition, Sequence[Lane]], limit: int
    ) -> list[tuple[Any, Exception]]:
        """Return jobs that the database refuses to start, of up to `limit` due ones of each lane, each with its error.

        To find them they are started, in parts, in transactions that are rolled back. Those excluded already are left out.
        Locks: the jobs, while they are tried. At most `MOST_TRIED` are.
        """
        most = limit + len(self.excluded)
        segments = [Segment([lane], most, one.types) for one, of in lanes.items() for lane in of]
        given = self._from_start(Plan(segments, {}, MOST_TRIED), self.excluded)
        rows = await compiled(claims.candidates, self._model, inputs=False).execute(connection, given)
        xids = {row[2]: row[1] for row in rows if row[2] is not None}
        types = sorted({name for one in lanes for name in one.types})

        async def try_to_start(ids: Sequence[Any]) -> None:
            by_id = Plan([Segment([], 0, types)], {job_id: xids[job_id] for job_id in ids}, len(ids))
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
        for segment in plan.segments:
            for lane in segment.lanes:
                cursors.lower(lane, START)
        return cursors.parameters(plan, excluded)


class Claim:
    """A claim from the open lanes of partitions, or of the jobs that a selector chose; within limits across workers if any.

    Partitions with limits or a selector are claimed one at a time. Without limits it is one statement; with them they are
    counted, claimed and spent in one transaction.
    """

    def __init__(self, lanes: Lanes, claims: Claims, shares: Shares) -> None:
        self._lanes, self._claims, self._shares = lanes, claims, shares
        self._partition = next(iter(shares))
        self._limits, self._selection = self._partition.limits, self._partition.selection
        self._chosen: Sequence[tuple[Candidate, str]] = ()

    async def run(self, connection: AsyncConnection, limit: int) -> list[ClaimedJob]:
        """Claim up to `limit` jobs; return them, in the selector's order if there is one."""
        if self._selection is not None:
            self._chosen = await self._choose(connection, limit, self._selection)
            if not self._chosen:
                self._lanes.chosen(self._shares, ())
                return []
        if self._limits is None:
            plan = self._plan(limit, {})
            return self._claimed(plan, *await self._take(connection, plan))
        while (jobs := await self._try(connection, limit, self._limits)) is None:
            pass
        return jobs

    async def _choose(
        self, connection: AsyncConnection, limit: int, selection: Selection
    ) -> Sequence[tuple[Candidate, str]]:
        """Offer the due jobs to the selector, before anything is locked; return its choice."""
        lanes, partition = self._lanes, self._partition
        late = dict(islice(lanes.late(partition), selection.window))
        capacity = selection.window - len(late)
        plan = lanes.planner.plan({partition: dict.fromkeys(self._shares[partition], capacity)}, capacity)
        plan = plan._replace(late=late, limit=selection.window)
        found, at = await selection.read(connection, lanes.cursors.parameters(plan, self._claims.excluded))
        lanes.offered(plan, found, at)
        xids = {one.id: xid for one, xid in found}
        chosen = await selection.choose([one for one, _ in found], limit, lanes.clock())
        return [(one, xids[one.id]) for one in chosen]

    async def _try(self, connection: AsyncConnection, limit: int, limits: Limits) -> list[ClaimedJob] | None:
        """Claim as many jobs as the limits allow; return None if the claim must be repeated.

        It must be repeated if the jobs exceeded a rate, so that fewer may fit, or if another claim used the rate at the same
        time. No job is started before the commit.
        """
        partition, clock, taken = self._partition, self._lanes.clock, None
        if self._selection is None:
            keys = self._lanes.planner.names(self._shares)
        else:
            keys = sorted({one.queue_key for one, _ in self._chosen if one.fairness_key})
        try:
            async with transaction(connection):
                limit, capacities = await limits.capacity(connection, limit, keys)
                partition.full_until = clock() + limits.retry_in if limits.retry_in else float("-inf")
                if self._selection is None:  # a selector may choose other jobs next time
                    self._lanes.back_off(capacities)
                if limit > 0:
                    plan = self._plan(limit, {key: capacities.get(key, limit) for key in keys})
                    taken = await self._take(connection, plan)
                    await limits.rates.spend(connection, taken[0])
        except RepeatClaimError:  # the cursors have not moved
            return None
        if taken is None:
            return []
        if taken[0] and len(taken[0]) == limits.left:  # all that the count left: another one would find nothing
            partition.full_until = max(partition.full_until, clock() + FULL)
        return self._claimed(plan, *taken)

    def _plan(self, limit: int, capacities: dict[QueueKey, int]) -> Plan:
        """Return the plan. `capacities`: how many jobs each fairness key may start, if that is limited."""
        if self._selection is None:
            return self._lanes.planner.plan(self._shares, limit, capacities)
        late: dict[Any, str] = {}
        for one, xid in self._chosen:
            if capacities.get(one.queue_key, 1) > 0:
                if one.queue_key in capacities:
                    capacities[one.queue_key] -= 1
                late[one.id] = xid
        return Plan([Segment([], 0, self._partition.types)], late, limit)

    async def _take(self, connection: AsyncConnection, plan: Plan) -> tuple[list[ClaimedJob], datetime]:
        return await self._claims.take(connection, self._lanes.cursors.parameters(plan, self._claims.excluded))

    def _claimed(self, plan: Plan, jobs: list[ClaimedJob], at: datetime) -> list[ClaimedJob]:
        """Record the started jobs, after the commit; return them."""
        if self._selection is None:
            self._lanes.claimed(plan, self._shares, jobs, at)
            return jobs
        place = {job_id: place for place, job_id in enumerate(plan.late)}
        self._lanes.chosen(self._shares, jobs)
        return sorted(jobs, key=lambda job: place[job.id])


def is_of_ordering(error: Exception) -> bool:
    """Return whether another claim has just started a job of the same ordering key, which this one could not see."""
    return isinstance(error, IntegrityError) and (diagnose(error).constraint or "").endswith("uq_job_ordering")

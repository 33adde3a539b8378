"""One claim: from open lanes, as a selector chooses, or under limits across workers."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from itertools import islice
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection

from sa_jobqueue.context import ClaimedJob
from sa_jobqueue.policies.fairness import QueueKey
from sa_jobqueue.registry.selectors import Candidate
from sa_jobqueue.worker.claim.cursors import Plan, Segment
from sa_jobqueue.worker.claim.lanes import Lanes
from sa_jobqueue.worker.claim.limits import FULL, Limits, transaction
from sa_jobqueue.worker.claim.planner import Shares
from sa_jobqueue.worker.claim.rates import RolledBackError
from sa_jobqueue.worker.claim.selectors import Selection


class Claim:
    """A claim from the open lanes of partitions, or of the jobs that a selector chose; within limits across workers if any.

    Partitions with limits or a selector are claimed one at a time. Without limits it is one statement; with them they are
    counted, claimed and spent in one transaction.
    """

    def __init__(self, lanes: Lanes, shares: Shares) -> None:
        self._lanes, self._shares = lanes, shares
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
            return self._claimed(plan, *await self._lanes.take(connection, plan))
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
        candidates, at = await selection.read(connection, lanes.cursors.parameters(plan, lanes.excluded))
        lanes.offered(plan, candidates, at)
        xids = {candidate.id: xid for candidate, xid in candidates}
        chosen = await selection.choose([candidate for candidate, _ in candidates], limit, lanes.clock(), partition.own_type)
        return [(candidate, xids[candidate.id]) for candidate in chosen]

    async def _try(self, connection: AsyncConnection, limit: int, limits: Limits) -> list[ClaimedJob] | None:
        """Claim as many jobs as the limits allow; return None if the claim must be repeated.

        It must be repeated if the jobs exceeded a rate, so that fewer may fit, or if another claim used the rate at the same
        time. No job is started before the commit.
        """
        partition, clock = self._partition, self._lanes.clock
        jobs: list[ClaimedJob] | None = None
        if self._selection is None:
            keys = self._lanes.planner.names(self._shares)
        else:
            keys = sorted({candidate.queue_key for candidate, _ in self._chosen if candidate.fairness_key})
        try:
            async with transaction(connection):
                limit, capacities = await limits.capacity(connection, limit, keys)
                partition.full_until = clock() + limits.retry_in if limits.retry_in else float("-inf")
                if self._selection is None:  # a selector may choose other jobs next time
                    self._lanes.back_off(capacities)
                if limit > 0:
                    plan = self._plan(limit, {key: capacities.get(key, limit) for key in keys})
                    jobs, now = await self._lanes.take(connection, plan)
                    await limits.rates.spend(connection, jobs)
        except RolledBackError:  # the cursors have not moved
            return None
        if jobs is None:
            return []
        if jobs and len(jobs) == limits.free_slots:  # all that the count left: another one would find nothing
            partition.full_until = max(partition.full_until, clock() + FULL)
        return self._claimed(plan, jobs, now)

    def _plan(self, limit: int, capacities: dict[QueueKey, int]) -> Plan:
        """Return the plan. `capacities`: how many jobs each fairness key may start, if that is limited."""
        if self._selection is None:
            return self._lanes.planner.plan(self._shares, limit, capacities)
        late: dict[Any, str] = {}
        for candidate, xid in self._chosen:
            if capacities.get(candidate.queue_key, 1) > 0:
                if candidate.queue_key in capacities:
                    capacities[candidate.queue_key] -= 1
                late[candidate.id] = xid
        return Plan([Segment([], 0, self._partition.types)], late, limit)

    def _claimed(self, plan: Plan, jobs: list[ClaimedJob], at: datetime) -> list[ClaimedJob]:
        """Record the started jobs, after the commit; return them."""
        if self._selection is None:
            self._lanes.claimed(plan, self._shares, jobs, at)
            return jobs
        place = {job_id: place for place, job_id in enumerate(plan.late)}
        self._lanes.chosen(self._shares, jobs)
        return sorted(jobs, key=lambda job: place[job.id])

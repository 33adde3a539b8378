"""The claim's statements, as one worker runs them: what they are given, and what its floors learn of what came."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from itertools import product
from typing import Any, Final, NamedTuple

from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from sa_jobqueue.context import ClaimedJob
from sa_jobqueue.db.compiled import Compiled, compiled, plain
from sa_jobqueue.db.splitting import in_parts
from sa_jobqueue.errors.drivers import diagnose
from sa_jobqueue.models import JobMixin
from sa_jobqueue.models.base import lowest_id
from sa_jobqueue.policies.fairness import part_of
from sa_jobqueue.statements import claims
from sa_jobqueue.worker.claim.floors import START, Lane, lanes_given, most_behind
from sa_jobqueue.worker.claim.groups import Group
from sa_jobqueue.worker.claim.limits import transaction
from sa_jobqueue.worker.claim.selectors import ChosenGroup
from sa_jobqueue.worker.claim.turns import Turn, together

MOST_TRIED: Final = 5000
"""Jobs that are tried to find those that cannot be started."""
_CHECK_NOW: Final = plain("SET CONSTRAINTS ALL IMMEDIATE")


class _UndoneError(Exception):
    """Rolls a trial back."""


class _Claim(NamedTuple):
    """What a claim returned: when it was sent, the database's `now()`, the snapshot's `xmax` and `xip`, and the jobs."""

    started: float
    now: datetime
    snapshot: tuple[str, list[str]]
    jobs: list[ClaimedJob]


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
        self._longest_waiting = compiled(claims.longest_waiting, model)
        self._remaining = compiled(claims.remaining, model)
        self.excluded: Collection[Any] = ()
        """Ids of jobs that are left as they are, for the database refuses to start them."""
        self._given = {"worker_id": worker_id, "grace": grace}
        self._clock = clock
        self.began_at: datetime | None = None
        """When the first claim since this was last forgotten looked, by the database's clock."""

    def _statement(self, *, behind: bool, is_shared: bool) -> Compiled:
        return compiled(claims.claim, self._model, changed=behind, shared=is_shared)

    def _for_groups(self, *, changed: bool) -> Compiled:
        # A statement of its own where jobs are excluded, which is seldom: the ordinary ones have no parameter for it.
        excluding = {"excluding": True} if self.excluded else {}
        return compiled(claims.claim_for_groups, self._model, changed=changed, **excluding)

    async def take(
        self, connection: AsyncConnection, turns: Sequence[Turn], limit: int
    ) -> list[tuple[int, list[ClaimedJob]]]:
        """Claim up to `limit` jobs of groups in turn, each up to its quota, with one statement, and move their floors.

        Returns of each what it was allowed and its jobs, up to the group at which the limit was reached. A group with limits
        across workers, or whose jobs are chosen, comes alone.
        Raises: TooHeavyError or OutdatedError before the floors have moved; whatever else is raised drops them.
        """
        first, limit = turns[0], min(limit, sum(turn.quota for turn in turns))
        given: dict[str, Any] = {"types": first.group.types, "limit": limit}
        if isinstance(first.group, ChosenGroup):
            return [(limit, await first.group.claim(connection, self._given | given))]
        if len(turns) > 1 or self.excluded:
            turns = [turn if turn.reading else turn._replace(reading=turn.group.floors.whole(turn.quota)) for turn in turns]
            statement = self._for_groups(changed=any(turn.behind for turn in turns))
            given |= together(turns) | ({"excluded": list(self.excluded)} if self.excluded else {})
        else:
            reading, behind = first.reading, first.behind
            if reading is None:
                statement = self._statements[behind]
            elif reading.is_flat and not behind:
                statement = compiled(claims.claim_from_lanes, self._model)
            else:
                statement = self._statement(behind=behind, is_shared=True)
                given["most_behind"] = most_behind(limit)
            given |= first.group.floors.parameters(changed=behind, reading=reading)
        claim = await self._run(connection, statement, given, turns)
        if first.group.limits is not None:
            await first.group.limits.rates.spend(connection, claim.jobs)
        taken: list[tuple[int, list[ClaimedJob]]] = []
        for turn, own in zip(turns, _by_turn(turns, claim.jobs), strict=True):
            if limit <= 0:
                break  # not read
            allowed = min(turn.quota, limit)
            self._advance(claim, turn, own, allowed)
            taken.append((allowed, own))
            limit -= len(own)
        return taken

    async def longest_waiting(self, connection: AsyncConnection, group: Group, limit: int) -> Turn | None:
        """Return the turn of the lane of a group whose first job has been due the longest.

        None where nothing is ahead, or where that lane has the next turn in any case.
        """
        _, reading = group.plan(limit)  # with fairness keys, the lanes include those of the next keys
        given = group.floors.parameters(changed=False, reading=reading) | {"types": group.types}
        lanes = await self._longest_waiting.execute(connection, given)
        if not lanes:
            return None
        queue, fairness_key, priority = lanes[0]
        if group.is_next(lane := Lane(part_of(queue, fairness_key), priority)):
            return None
        return Turn(group, limit, group.floors.single(lane, limit))

    async def remaining(self, connection: AsyncConnection, groups: Sequence[Group]) -> bool:
        """Return whether a claim from the start of all lanes would start a job, or a chain's end was not passed on.

        What is chosen by a selector is left out: it may leave jobs that are due.
        """
        groups = [group for group in groups if not isinstance(group, ChosenGroup)]
        own = list(dict.fromkeys(lane for group in groups for lane in group.floors.lanes))
        given = lanes_given(own) | {
            "floor_at": [START] * len(own),
            "floor_id": [lowest_id(self._model.__jobqueue__)] * len(own),
            "types": sorted({name for group in groups for name in group.types}),
        }
        ((is_due, is_unsettled),) = await self._remaining.execute(connection, given)
        return bool(is_due or is_unsettled)

    async def refused(
        self, connection: AsyncConnection, groups: Sequence[Group], limit: int
    ) -> list[tuple[Any, DBAPIError]]:
        """Return jobs that the database refuses to start, of up to `limit` due ones of each lane, each with its error.

        To find them they are started, in parts, in transactions that are rolled back. Those excluded already are left out.
        Locks: the jobs, while they are tried. At most `MOST_TRIED` are.
        """
        lanes = list(dict.fromkeys(lane for group in groups for lane in group.floors.known))
        quota = max([limit, *(group.caller.selector.window for group in groups if isinstance(group, ChosenGroup))])
        given = lanes_given(lanes) | {
            "floor_at": [START] * len(lanes),
            "floor_id": [lowest_id(self._model.__jobqueue__)] * len(lanes),
            "quotas": [quota + len(self.excluded)] * len(lanes),
            "types": sorted({name for group in groups for name in group.types}),
            "limit": MOST_TRIED,
        }
        rows = await compiled(claims.startable, self._model).execute(connection, given)
        by_id = compiled(claims.claim_by_id, self._model)

        async def try_to_start(ids: Sequence[Any]) -> None:
            with suppress(_UndoneError):
                async with transaction(connection):
                    try:
                        await by_id.execute(connection, self._given | {"ids": ids})
                        await _CHECK_NOW.execute(connection, {})
                    except IntegrityError as error:
                        if not is_of_ordering(error):
                            raise
                    raise _UndoneError

        excluded = set(self.excluded)
        _, refused = await in_parts([row[0] for row in rows if row[0] not in excluded], try_to_start)
        return refused

    async def _run(
        self, connection: AsyncConnection, statement: Compiled, given: dict[str, Any], turns: Sequence[Turn]
    ) -> _Claim:
        started = self._clock()
        try:
            rows = await statement.execute(connection, self._given | given)
        except BaseException:
            for turn in turns:
                turn.group.floors.reset(self._clock())
            raise
        now, xmax, xip = rows[0][:3]
        self.began_at = self.began_at or now
        # By position: what follows the claim's own three columns is CLAIMED, the fields of ClaimedJob in order.
        return _Claim(started, now, (xmax, xip), [ClaimedJob._make(row[3:]) for row in rows if row[3] is not None])

    def _advance(self, claim: _Claim, turn: Turn, jobs: Sequence[ClaimedJob], limit: int) -> None:
        turn.group.floors.advance(
            [(job.part, job.priority, job.scheduled_at, job.id) for job in jobs],
            limit=limit,
            changed=turn.behind,
            database_now=claim.now,
            snapshot=claim.snapshot,
            started=claim.started,
            now=self._clock(),
            reading=turn.reading,
        )


def is_of_ordering(error: IntegrityError) -> bool:
    """Return whether another claim has just started a job of the same ordering key, which this one could not see."""
    return (diagnose(error).constraint or "").endswith("uq_job_ordering")


def _by_turn(turns: Sequence[Turn], jobs: list[ClaimedJob]) -> list[list[ClaimedJob]]:
    """Return which of the jobs are of each group."""
    if len(turns) == 1:
        return [jobs]
    place = {pair: place for place, turn in enumerate(turns) for pair in product(turn.group.queues, turn.group.types)}
    own: list[list[ClaimedJob]] = [[] for _ in turns]
    for job in jobs:
        own[place[job.queue, job.type_name]].append(job)
    return own

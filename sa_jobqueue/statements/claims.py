"""Claiming: the one statement that starts attempts, and when to try it next.

A lane is a queue and a priority. A claim probes its lanes in the order given, each from its floor: the last key
`(scheduled_at, id)` behind which everything has been seen. So it never walks the dead index entries that a
transaction, somewhere, keeps vacuum from removing; what became visible *behind* a floor is found by the transaction
that wrote it (`changed_xid`) and the snapshot of the claim before. `worker.floors` keeps the state and proves it.

Source: the snapshot difference is PgQ's (M. Kreen et al., Skype, 2007), used there for batches of a log.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import (
    Double,
    Integer,
    Interval,
    Select,
    SmallInteger,
    Table,
    Text,
    and_,
    any_,
    bindparam,
    cast,
    column,
    exists,
    false,
    func,
    literal_column,
    select,
    true,
    tuple_,
    union_all,
    update,
)
from sqlalchemy.dialects.postgresql import ARRAY, TIMESTAMP
from sqlalchemy.sql.elements import ColumnElement, Grouping
from sqlalchemy.sql.selectable import TableValuedAlias

from sa_jobqueue.models import JobMixin
from sa_jobqueue.models.base import Xid8, id_parameter
from sa_jobqueue.statements._parts import GUARDS, LAST_ATTEMPT, XID, array, once_a_model, status, table
from sa_jobqueue.types import MIN_PRIORITY, JobStatus

__all__ = ["CLAIMED", "GUARDS", "claim", "claimed_columns", "longest_waiting", "next_due"]

CLAIMED: Final = (
    "id",
    "type_name",
    "queue",
    "priority",
    "chain_id",
    "chain_type_name",
    "chain_index",
    "input",
    "input_version",
    "attempt",
    "max_attempts",
    "timeout",
    "created_at",
    "scheduled_at",
    "started_at",
    "trace_context",
    "chain_trace_context",
    "ordering_key",
)
"""What a claim returns of each job, in this order, after its own three columns."""


@once_a_model
def claim(model: type[JobMixin[Any]], *, changed: bool, shared: bool = False) -> Select[Any]:
    """Start an attempt on up to `limit` due jobs of the lanes given, in the order of the lanes, then by due time.

    Parameters: lanes as the arrays `queues`, `priorities`, `floor_at`, `floor_id`; `types` the worker knows; `limit`;
    `worker_id`; `grace` added to a job's own timeout for its lease. With `changed` also `xmax` and `xip` of the
    snapshot before, as text, and `highest_floor`: what those transactions made due behind the floors is taken first.
    With `shared` the lanes lie in blocks, from `firsts` to `lasts` (positions from 1), of which each gives at most its
    number in `quotas`; and what lies behind the floors takes at most half of the limit, rounded up (`most_behind`): with
    `changed` it is looked for in the first `lanes_behind` lanes alone.
    Shape: one row a job, `now, xmax, xip` and `CLAIMED`; a single row with a null id when there is none. Unordered.
    Changes: pending -> running; `attempt` + 1; `leased_by`, `leased_until`, `started_at`.
    Clock: the database's, at the start of the transaction.
    Locks: the rows taken, until that transaction ends, but not their keys: a foreign key that an application is just
    pointing at a job does not hide it. Rows held by others are skipped, not awaited.
    Obliges: run it alone in a READ COMMITTED transaction of its own and commit at once, before any handler runs.
    Index: `ix_job_claim`, one probe a lane; with `changed`, `ix_job_changed`. For a job with an ordering key also
    `ix_job_ordering` and `uq_job_ordering`, whose violation means that another claim has just started one of that key.
    """
    job = table(model)
    limit = bindparam("limit", type_=Integer)
    share = _shares()
    lane = _lanes(model, "lane", (share.c.first, share.c.last) if shared else None)
    probe = _ahead(job, lane).limit(limit).with_for_update(key_share=True, skip_locked=True).lateral("probe")
    in_order = select(probe.c.id).select_from(lane.join(probe, true()))
    if shared:
        block = in_order.limit(share.c.quota).lateral("block")
        in_order = select(block.c.id).select_from(share.join(block, true()))
    # A LIMIT over the union stops the probes as soon as enough rows are locked; no probe locks more than it returns.
    sources = [in_order]
    if changed and shared:
        behind = (
            union_all(*_behind_floors(model, job, limit, bindparam("lanes_behind", type_=Integer)))
            .limit(bindparam("most_behind", type_=Integer))
            .subquery("behind")
        )
        sources = [select(behind.c.id), in_order]
    elif changed:
        sources = [*_behind_floors(model, job, limit), in_order]
    picked = (union_all(*sources) if len(sources) > 1 else in_order).limit(limit).cte("picked")
    claimed = (
        update(job)
        # ARRAY(SELECT ...) runs once; a join with the CTE has plans that rescan the table for every row of it.
        .where(job.c.id == any_(func.array(select(picked.c.id).scalar_subquery())))
        .values(
            status=status(JobStatus.RUNNING),
            attempt=job.c.attempt + 1,
            started_at=func.now(),
            leased_by=bindparam("worker_id", type_=Text),
            leased_until=func.now() + job.c.timeout + bindparam("grace", type_=Interval),
            changed_xid=XID,
        )
        .returning(*claimed_columns(job))
        .cte("claimed")
    )
    here = select(literal_column("1").label("one")).subquery("here")
    return select(
        func.now().label("now"),
        literal_column("pg_snapshot_xmax(pg_current_snapshot())::text", Text).label("xmax"),
        literal_column("ARRAY(SELECT x::text FROM pg_snapshot_xip(pg_current_snapshot()) AS x)", ARRAY(Text)).label("xip"),
        *(claimed.c[name] for name in CLAIMED),
    ).select_from(here.outerjoin(claimed, true()))


@once_a_model
def next_due(model: type[JobMixin[Any]]) -> Select[Any]:
    """Tell how long until the next job of the lanes is due.

    Parameters: `queues`, `priorities`, `types`; `since`, null for now: what was due then is the claim's business, whose time
    it is. What has become due after it is not, or nobody would look before the next poll.
    Shape: one row, seconds from now as a float, below zero for what is due since then; null when nothing is scheduled.
    Index: `ix_job_claim`, one probe a lane, from `since` on.
    """
    job = table(model)
    lane = func.unnest(array("queues", Text()), array("priorities", SmallInteger())).table_valued(
        column("queue", Text), column("priority", SmallInteger)
    )
    lane = lane.render_derived("lane")
    probe = (
        select(job.c.scheduled_at)
        .where(
            job.c.status == status(JobStatus.PENDING),
            job.c.priority >= literal_column(f"'{MIN_PRIORITY}'"),
            job.c.queue == lane.c.queue,
            job.c.priority == lane.c.priority,
            job.c.scheduled_at > func.coalesce(bindparam("since", None, type_=TIMESTAMP(timezone=True)), func.now()),
            job.c.type_name == any_(array("types", Text())),
        )
        .order_by(job.c.scheduled_at, job.c.id)
        .limit(literal_column("1"))
        .lateral("probe")
    )
    wait = func.min(probe.c.scheduled_at) - func.now()
    return select(cast(func.extract("epoch", wait), Double)).select_from(lane.join(probe, true()))


@once_a_model
def longest_waiting(model: type[JobMixin[Any]]) -> Select[Any]:
    """Tell which of the lanes has the job ahead of its floor that has been due the longest.

    Parameters: as `claim`, without its limit and its worker. Shape: `(queue, priority)`, no row where nothing is due.
    Locks: none. Index: `ix_job_claim`, one probe a lane; `ix_job_ordering` and `uq_job_ordering` as in `claim`.
    """
    job = table(model)
    lane = _lanes(model, "lane")
    probe = _ahead(job, lane).with_only_columns(job.c.scheduled_at).limit(literal_column("1")).lateral("probe")
    first = select(lane.c.queue, lane.c.priority).select_from(lane.join(probe, true()))
    return first.order_by(probe.c.scheduled_at).limit(literal_column("1"))


def _ahead(job: Table, lane: TableValuedAlias) -> Select[Any]:
    return (
        _due(job)
        .where(
            # The tag of ix_job_claim, and its key.
            job.c.priority >= literal_column(f"'{MIN_PRIORITY}'"),
            job.c.queue == lane.c.queue,
            job.c.priority == lane.c.priority,
            tuple_(job.c.scheduled_at, job.c.id) > tuple_(lane.c.floor_at, lane.c.floor_id),
        )
        .order_by(job.c.scheduled_at, job.c.id)
    )


def claimed_columns(job: Table) -> list[ColumnElement[Any]]:
    """Return `CLAIMED` of a job, each as Python can hold it: a time far out, written by hand, must not fail the others."""
    return [_bounded(job.c[name]) if name == "created_at" else job.c[name] for name in CLAIMED]


def _bounded(instant: ColumnElement[Any]) -> ColumnElement[Any]:
    first: ColumnElement[Any] = literal_column("'0001-01-02 00:00:00+00'")
    last: ColumnElement[Any] = literal_column("'9999-12-30 00:00:00+00'")
    return func.least(func.greatest(instant, first), last, type_=instant.type).label("created_at")


def _due(job: Table) -> Select[Any]:
    return select(job.c.id).where(
        job.c.status == status(JobStatus.PENDING),
        job.c.scheduled_at <= func.now(),
        job.c.type_name == any_(array("types", Text())),
        job.c.attempt < LAST_ATTEMPT,
        job.c.expires_at.is_(None) | (job.c.expires_at > func.now()),
        job.c.ordering_key.is_(None) | _is_next(job),
    )


def is_aside(job: Any) -> ColumnElement[bool]:
    """Return whether a job has been tried and lets others of its ordering key go on until it is due again."""
    stepped = func.coalesce(job.c.steps_aside, false())
    return and_(
        stepped,
        job.c.status == status(JobStatus.PENDING),
        job.c.attempt > literal_column("0"),
        job.c.scheduled_at > func.now(),
    )


def _is_next(job: Table) -> ColumnElement[bool]:
    """Return whether a job is the first open one of its ordering key that has not stepped aside, and none is running.

    One that is passed over for it comes back: the trigger `tr_job_next` stamps it when it is next.
    """
    # Scalar subqueries: an EXISTS may be planned as a hash of all keys.
    first, other = job.alias("first"), job.alias("other")
    earliest = (
        select(first.c.id)
        .where(
            first.c.ordering_key == job.c.ordering_key,
            first.c.ordering_key.is_not(None),
            first.c.status.in_([status(JobStatus.BLOCKED), status(JobStatus.PENDING), status(JobStatus.RUNNING)]),
            ~is_aside(first),
        )
        .order_by(first.c.ordering_key, first.c.created_at, first.c.id)
        .limit(literal_column("1"))
        .correlate(job)
    )
    running = (
        select(other.c.id)
        .where(
            other.c.ordering_key == job.c.ordering_key,
            other.c.ordering_key.is_not(None),
            other.c.leased_by.is_not(None),
        )
        .limit(literal_column("1"))
        .correlate(job)
    )
    return and_(job.c.id == earliest.scalar_subquery(), running.scalar_subquery().is_(None))


def _lanes(model: type[JobMixin[Any]], name: str, block: tuple[Any, Any] | None = None) -> TableValuedAlias:
    """Return the lanes given as parameters as a relation; with `block` those from its first to its last position."""
    key = id_parameter(model.__jobqueue__)
    stamp = TIMESTAMP(timezone=True)
    types = {"queues": Text(), "priorities": SmallInteger(), "floor_at": stamp, "floor_id": key}
    values: list[ColumnElement[Any]] = [array(parameter, type_) for parameter, type_ in types.items()]
    if block is not None:
        values = [Grouping(value)[block[0] : block[1]] for value in values]
    columns = (column("queue", Text), column("priority", SmallInteger), column("floor_at", stamp), column("floor_id", key))
    return func.unnest(*values).table_valued(*columns).render_derived(name)


def _shares() -> TableValuedAlias:
    names = ("firsts", "lasts", "quotas")
    return (
        func.unnest(*(array(name, Integer()) for name in names))
        .table_valued(column("first", Integer), column("last", Integer), column("quota", Integer))
        .render_derived("share")
    )


def _behind_floors(
    model: type[JobMixin[Any]], job: Table, limit: ColumnElement[int], lanes: ColumnElement[int] | None = None
) -> list[Select[Any]]:
    """Select due rows at or behind their lane's floor whose writer was not visible to the snapshot before.

    Two sources: transactions that were in flight then (`xip`), and those that began since (from `xmax` on).
    """
    floor = _lanes(model, "floor", None if lanes is None else (literal_column("1"), lanes))
    behind = exists(
        select(literal_column("1"))
        .select_from(floor)
        .where(
            floor.c.queue == job.c.queue,
            floor.c.priority == job.c.priority,
            tuple_(job.c.scheduled_at, job.c.id) <= tuple_(floor.c.floor_at, floor.c.floor_id),
        )
    )
    candidates = _due(job).where(
        # The tag of ix_job_changed: no other statement may name it.
        job.c.changed_xid > literal_column("'0'"),
        job.c.scheduled_at <= bindparam("highest_floor", type_=TIMESTAMP(timezone=True)),
        behind,
    )
    then = func.unnest(cast(array("xip", Text()), ARRAY(Xid8()))).table_valued(column("xid", Xid8())).render_derived("then")
    in_flight = (
        candidates
        # A pair of bounds, not an equality: it keeps the order by xid, and with it the plan, the same in both sources.
        .where(and_(job.c.changed_xid >= then.c.xid, job.c.changed_xid <= then.c.xid))
        .order_by(job.c.changed_xid)
        .limit(limit)
        .with_for_update(key_share=True, skip_locked=True)
        .lateral("in_flight")
    )
    since = (
        candidates.where(job.c.changed_xid >= cast(bindparam("xmax", type_=Text), Xid8()))
        .order_by(job.c.changed_xid)
        .limit(limit)
        .with_for_update(key_share=True, skip_locked=True)
        .subquery("since")
    )
    return [
        select(in_flight.c.id).select_from(then.join(in_flight, true())),
        select(since.c.id),
    ]

"""Lanes and their floors, as statements read them: what is due ahead of a floor, and what was written behind it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    CTE,
    CompoundSelect,
    Integer,
    Select,
    SmallInteger,
    Table,
    Text,
    all_,
    and_,
    any_,
    bindparam,
    cast,
    column,
    exists,
    false,
    func,
    literal_column,
    null,
    select,
    true,
    tuple_,
    type_coerce,
    union_all,
)
from sqlalchemy.dialects.postgresql import ARRAY, TIMESTAMP
from sqlalchemy.sql.elements import ColumnElement, Grouping
from sqlalchemy.sql.selectable import TableValuedAlias

from sa_jobqueue.models import JobMixin
from sa_jobqueue.models.base import Xid8, id_parameter
from sa_jobqueue.statements._parts import LAST_ATTEMPT, array, status, table
from sa_jobqueue.types import MIN_PRIORITY, JobStatus


@dataclass(frozen=True, slots=True)
class _Given:
    """What a claim is given: parameters, or what one of several groups has of them."""

    limit: ColumnElement[Any]
    types: ColumnElement[Any]
    xmax: ColumnElement[Any]
    xip: ColumnElement[Any]
    highest_floor: ColumnElement[Any]
    most_behind: ColumnElement[Any]
    lanes_behind: tuple[ColumnElement[int], ColumnElement[int]] | None = None
    """From which of the lanes to which it looks behind the floors; None for all."""
    shares: tuple[ColumnElement[int], ColumnElement[int]] | None = None
    """Which of the shares are its own; None for all."""
    freed: CTE | None = None
    """What `freed` selects, where several groups look at it."""
    excluded: ColumnElement[Any] | None = None
    """Ids that are not taken."""

    def due(self, job: Table) -> Select[Any]:
        """Select the ids of jobs that may be taken now."""
        found = due(job, self.types)
        return found if self.excluded is None else found.where(job.c.id != all_(self.excluded))


def picked(
    model: type[JobMixin[Any]], *, changed: bool, shared: bool, takes: bool = True
) -> Select[Any] | CompoundSelect[Any]:
    """Select the ids that a claim takes, in its order and up to its limit; the parameters are the claim's.

    Of a statement that takes nothing, `takes` is false: nothing is locked, what others have locked is there as well, and
    what was read before (`held`, ids) is not looked for behind the floors again.
    """
    given = _Given(
        limit=bindparam("limit", type_=Integer),
        types=array("types", Text()),
        xmax=bindparam("xmax", type_=Text),
        xip=array("xip", Text()),
        highest_floor=bindparam("highest_floor", type_=TIMESTAMP(timezone=True)),
        most_behind=bindparam("most_behind", type_=Integer),
        lanes_behind=(literal_column("1"), bindparam("lanes_behind", type_=Integer)) if shared else None,
    )
    return _picked(model, given, changed=changed, shared=shared, takes=takes)


def picked_by_lanes(model: type[JobMixin[Any]], *, takes: bool = True) -> Select[Any]:
    """Select the ids that a claim takes from lane after lane, of each up to its quota; `takes` as of `picked`."""
    lane = lanes(model, "lane", quotas=True)
    probe = _locked(ahead(due(table(model)), table(model), lane).limit(lane.c.quota), takes).lateral("probe")
    return select(probe.c.id).select_from(lane.join(probe, true())).limit(bindparam("limit", type_=Integer))


def picked_by_groups(model: type[JobMixin[Any]], *, changed: bool, excluding: bool) -> Select[Any]:
    """Select the ids that a claim for several groups takes, group after group, each as `picked` does and up to its quota.

    With `excluding` none of those in the parameter `excluded`.
    """
    numbers = ("quota", "first_share", "last_share", "first_type", "last_type")
    behind = ("first_lane", "last_lane", "most_behind", "first_xip", "last_xip") if changed else ()
    types: dict[str, Any] = dict.fromkeys((*numbers, *behind), Integer())
    if changed:
        types |= {"xmax": Text(), "highest_floor": TIMESTAMP(timezone=True)}
    row = (
        func.unnest(*(array(f"group_{name}", type_) for name, type_ in types.items()))
        .table_valued(*(column(name, type_) for name, type_ in types.items()))
        .render_derived("row")
    )
    known = _cut(array("types", Text()), (row.c.first_type, row.c.last_type))
    # The OFFSET has a group's types cut out once, not for every row that is compared with them.
    group = select(*row.c, type_coerce(known, ARRAY(Text)).label("types")).offset(literal_column("0")).subquery("of_group")
    # By name: what lies within a lateral of a lateral is not correlated for us.
    of = {column.name: literal_column(f"of_group.{column.name}", column.type) for column in group.c}
    nothing: ColumnElement[Any] = null()
    given = _Given(
        limit=of["quota"],
        types=of["types"],
        xmax=of.get("xmax", nothing),
        xip=_cut(array("xip", Text()), (of["first_xip"], of["last_xip"])) if changed else nothing,
        highest_floor=of.get("highest_floor", nothing),
        most_behind=of.get("most_behind", nothing),
        lanes_behind=(of["first_lane"], of["last_lane"]) if changed else None,
        shares=(of["first_share"], of["last_share"]),
        freed=freed(table(model)).cte("freed") if changed else None,
        excluded=array("excluded", id_parameter(model.__jobqueue__)) if excluding else None,
    )
    taken = _picked(model, given, changed=changed, shared=True, takes=True).lateral("taken")
    return select(taken.c.id).select_from(group.join(taken, true())).limit(bindparam("limit", type_=Integer))


def _picked(
    model: type[JobMixin[Any]], given: _Given, *, changed: bool, shared: bool, takes: bool
) -> Select[Any] | CompoundSelect[Any]:
    job = table(model)
    share = _shares(given.shares)
    lane = lanes(model, "lane", (share.c.first, share.c.last) if shared else None)
    probe = _locked(ahead(given.due(job), job, lane).limit(given.limit), takes).lateral("probe")
    in_order = select(probe.c.id).select_from(lane.join(probe, true()))
    if shared:
        block = in_order.limit(share.c.quota).lateral("block")
        in_order = select(block.c.id).select_from(share.join(block, true()))
    # A LIMIT over the union stops the probes as soon as enough rows are locked; no probe locks more than it returns.
    sources = [in_order]
    if changed and shared:
        behind = union_all(*_behind_floors(model, job, given, takes=takes)).limit(given.most_behind).subquery("behind")
        sources = [select(behind.c.id), in_order]
    elif changed:
        sources = [*_behind_floors(model, job, given, takes=takes), in_order]
    return (union_all(*sources) if len(sources) > 1 else in_order).limit(given.limit)


def _locked(rows: Select[Any], takes: bool) -> Select[Any]:
    return rows.with_for_update(key_share=True, skip_locked=True) if takes else rows


def ahead(found: Select[Any], job: Table, lane: TableValuedAlias) -> Select[Any]:
    """Select what `found` selects of a lane ahead of its floor, in the lane's order."""
    # The tag of ix_job_claim, and its key.
    return found.where(
        job.c.priority >= literal_column(f"'{MIN_PRIORITY}'"),
        job.c.queue == lane.c.queue,
        job.c.fairness_key == lane.c.fairness_key,
        job.c.priority == lane.c.priority,
        tuple_(job.c.scheduled_at, job.c.id) > tuple_(lane.c.floor_at, lane.c.floor_id),
    ).order_by(job.c.scheduled_at, job.c.id)


def due(job: Table, types: ColumnElement[Any] | None = None) -> Select[Any]:
    """Select the ids of jobs that may be started now."""
    return select(job.c.id).where(job.c.status == status(JobStatus.PENDING), *is_due(job, types))


def is_due(job: Table, types: ColumnElement[Any] | None = None) -> list[ColumnElement[bool]]:
    """Return what must be so of a pending job that may be started now; without `types` the parameter of that name."""
    return [
        job.c.scheduled_at <= func.now(),
        job.c.type_name == any_(array("types", Text()) if types is None else types),
        job.c.attempt < LAST_ATTEMPT,
        job.c.expires_at.is_(None) | (job.c.expires_at > func.now()),
        job.c.ordering_key.is_(None) | _is_next(job),
    ]


def is_aside(job: Any) -> ColumnElement[bool]:
    """Return whether a job has been tried and lets others of its ordering key go on until it is due again."""
    stepped = func.coalesce(job.c.skip_while_retrying, false())
    return and_(
        stepped,
        job.c.status == status(JobStatus.PENDING),
        job.c.attempt > literal_column("0"),
        job.c.scheduled_at > func.now(),
    )


def _is_next(job: Table) -> ColumnElement[bool]:
    """Return whether a job is the first of its ordering key that waits and has not stepped aside, and none is running.

    One that is passed over for it comes back: `freed` finds it when it is next.
    """
    # Scalar subqueries: an EXISTS may be planned as a hash of all keys. Who runs is asked first: it has the fewer entries.
    earliest = first_waiting(job.alias("first"), job.c.ordering_key).correlate(job)
    running = running_of(job.alias("other"), job.c.ordering_key).correlate(job)
    return and_(running.scalar_subquery().is_(None), job.c.id == earliest.scalar_subquery())


def first_waiting(job: Any, key: ColumnElement[str]) -> Select[Any]:
    """Select the id of the first job of an ordering key that waits and has not stepped aside, by `ix_job_ordering`."""
    return (
        select(job.c.id)
        .where(
            job.c.ordering_key == key,
            job.c.ordering_key.is_not(None),
            job.c.status.in_([status(JobStatus.BLOCKED), status(JobStatus.PENDING)]),
            ~is_aside(job),
        )
        .order_by(job.c.ordering_key, job.c.created_at, job.c.id)
        .limit(literal_column("1"))
    )


def running_of(job: Any, key: ColumnElement[str]) -> Select[Any]:
    """Select the id of the job of an ordering key that runs, by `uq_job_ordering`."""
    return (
        select(job.c.id)
        .where(job.c.ordering_key == key, job.c.ordering_key.is_not(None), job.c.leased_by.is_not(None))
        .limit(literal_column("1"))
    )


def lanes(
    model: type[JobMixin[Any]], name: str, block: tuple[Any, Any] | None = None, *, quotas: bool = False
) -> TableValuedAlias:
    """Return the lanes given as parameters as a relation; with `block` those from its first to its last position.

    With `quotas` each of them is a block of its own, and has its quota.
    """
    key = id_parameter(model.__jobqueue__)
    stamp = TIMESTAMP(timezone=True)
    types = {"queues": Text(), "fairness_keys": Text(), "priorities": SmallInteger(), "floor_at": stamp, "floor_id": key}
    values: list[ColumnElement[Any]] = [array(parameter, type_) for parameter, type_ in types.items()]
    values = [_cut(value, block) for value in values]
    columns: list[ColumnElement[Any]] = [
        column("queue", Text),
        column("fairness_key", Text),
        column("priority", SmallInteger),
        column("floor_at", stamp),
        column("floor_id", key),
    ]
    if quotas:
        values.append(array("quotas", Integer()))
        columns.append(column("quota", Integer))
    return func.unnest(*values).table_valued(*columns).render_derived(name)


def _cut(values: ColumnElement[Any], block: tuple[Any, Any] | None) -> ColumnElement[Any]:
    """Return an array parameter from the first to the last position of a block, or all of it."""
    return values if block is None else Grouping(values)[block[0] : block[1]]


def _shares(block: tuple[Any, Any] | None) -> TableValuedAlias:
    values = [_cut(array(name, Integer()), block) for name in ("firsts", "lasts", "quotas")]
    return (
        func.unnest(*values)
        .table_valued(column("first", Integer), column("last", Integer), column("quota", Integer))
        .render_derived("share")
    )


def _behind_floors(model: type[JobMixin[Any]], job: Table, given: _Given, *, takes: bool) -> list[Select[Any]]:
    """Select due rows at or behind their lane's floor that were written, or whose key was released, after a snapshot.

    Three sources: rows written by transactions that were in progress at the snapshot (`xip`), rows written by transactions
    that began since (from `xmax` on), and the first waiting job of each ordering key that either of them released.
    """
    wanted = given.due(job)
    if not takes:
        wanted = wanted.where(job.c.id != all_(array("held", id_parameter(model.__jobqueue__))))
    # The tag of ix_job_changed: no other statement may name it.
    candidates = wanted.where(job.c.changed_xid > literal_column("'0'"), *_is_behind(model, job.c, given))
    then = transactions(given.xip)
    # A pair of bounds, not an equality: it keeps the order by xid, and with it the plan, the same in both sources.
    of_then = candidates.where(and_(job.c.changed_xid >= then.c.xid, job.c.changed_xid <= then.c.xid))
    in_flight = _locked(of_then.order_by(job.c.changed_xid).limit(given.limit), takes).lateral("in_flight")
    of_since = candidates.where(job.c.changed_xid >= cast(given.xmax, Xid8()))
    since = _locked(of_since.order_by(job.c.changed_xid).limit(given.limit), takes).subquery("since")
    let_go = given.freed if given.freed is not None else freed(job).subquery("freed")
    # What is ahead of its floor, as most are, is not read a second time. Nor is what is written since as well: a job that
    # came from two sources counts twice to the limit, and hides that it was reached.
    own = select(let_go.c.id).where(
        let_go.c.type_name == any_(given.types),
        let_go.c.changed_xid < cast(given.xmax, Xid8()),
        let_go.c.changed_xid != all_(cast(given.xip, ARRAY(Xid8()))),
        *_is_behind(model, let_go.c, given),
    )
    # By ids, not by a join: what is locked is read by its primary key, however many rows the planner takes it for.
    of_freed = wanted.where(job.c.id == any_(func.array(own.scalar_subquery())))
    next_of_keys = _locked(of_freed.limit(given.limit), takes).subquery("next_of_keys")
    return [
        select(in_flight.c.id).select_from(then.join(in_flight, true())),
        select(since.c.id),
        select(next_of_keys.c.id),
    ]


def _is_behind(model: type[JobMixin[Any]], job: Any, given: _Given) -> list[ColumnElement[bool]]:
    """Return what must be so of a job, by its columns, that lies at or behind the floor of a lane."""
    floor = lanes(model, "floor", given.lanes_behind)
    own: Select[Any] = (
        select(literal_column("1"))
        .select_from(floor)
        .where(
            floor.c.queue == job.queue,
            floor.c.fairness_key == job.fairness_key,
            floor.c.priority == job.priority,
            tuple_(job.scheduled_at, job.id) <= tuple_(floor.c.floor_at, floor.c.floor_id),
        )
    )
    return [job.scheduled_at <= given.highest_floor, exists(own)]


def freed(job: Table) -> Select[Any]:
    """Select the first waiting job of each released ordering key; skips blocked jobs and those that are backing off.

    Shape: its id, and the columns that decide whether it lies behind a floor, and whose.
    Parameters: `xmax`, `xip` of a snapshot: the key was released by a transaction that was not visible to it. A key is
    released by a job that ended or was rescheduled, whose row still exists; if the row was deleted, `tr_job_next` has
    stamped the next one.
    Index: `ix_job_ordering_freed`, and `ix_job_ordering`, one probe a key.
    """
    left = job.alias("left_key")
    by = select(left.c.ordering_key).where(
        left.c.ordering_key.is_not(None),
        left.c.leased_by.is_(None),
        left.c.completed_at.is_not(None) | left.c.started_at.is_not(None),
    )
    then = transactions(array("xip", Text()))
    of_then = by.where(left.c.changed_xid >= then.c.xid, left.c.changed_xid <= then.c.xid).lateral("of_then")
    # No transaction above the upper bound is visible anyway. The bound is for the planner, which takes a range for
    # selective.
    end: ColumnElement[Any] = literal_column("pg_snapshot_xmax(pg_current_snapshot())")
    of_since = by.where(left.c.changed_xid >= cast(bindparam("xmax", type_=Text), Xid8()), left.c.changed_xid < end)
    keys = union_all(select(of_then.c.ordering_key).select_from(then.join(of_then, true())), of_since).subquery("keys")
    key = select(keys.c.ordering_key).distinct().subquery("key")
    first = job.alias("first")
    names = ("id", "type_name", "queue", "fairness_key", "priority", "scheduled_at", "changed_xid", "status")
    columns = (first.c[name] for name in names)
    waiting = first_waiting(first, key.c.ordering_key).with_only_columns(*columns).lateral("first")
    found = select(*waiting.c).select_from(key.join(waiting, true()))
    return found.where(waiting.c.status == status(JobStatus.PENDING))


def transactions(xip: ColumnElement[Any]) -> TableValuedAlias:
    """Return transactions that a snapshot did not see, for they were in flight, as a relation."""
    return func.unnest(cast(xip, ARRAY(Xid8()))).table_valued(column("xid", Xid8())).render_derived("then")

"""Jobs as rows: enqueueing many, looking at them, and changing them through the `job_queue` view."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import INTERVAL, JSONB, TIMESTAMP, Insert
from sqlalchemy.dialects.postgresql import array as array_of
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.sql.selectable import TableValuedAlias

from sa_jobqueue.models.base import id_parameter
from sa_jobqueue.statements._parts import Tables, alive_until, array, bound, relation, statement, status
from sa_jobqueue.statements.arrivals import heads, is_keyed
from sa_jobqueue.types import AttemptOutcome, JobId, JobStatus


@statement
def enqueue_one(t: Tables, columns: tuple[str, ...]) -> Insert:
    """Insert one job; with `changed_xid` tell idle workers of it when and if this transaction commits (`NotifyingXid`).

    Parameters: each name in `columns` but `chain_id` and `chain_type_name`, which are those of the job; `input` as JSON
    text; `changed_xid`, its queue, or a fairness key of one (`QueueKey.text`).
    Shape: no rows returned. Locks: none but the new row's; a commit with a notification takes one lock a database.
    """
    of_root = {"chain_id": "id", "chain_type_name": "type_name"}
    values: dict[str, Any] = {name: sa.bindparam(of_root.get(name, name), type_=t.job.c[name].type) for name in columns}
    if "input" in values:
        values["input"] = sa.cast(sa.bindparam("input", type_=sa.Text), JSONB)
    return upsert(t.job).values(values)


@statement
def enqueue_many(t: Tables, columns: tuple[str, ...], equal: tuple[str, ...] = ()) -> Insert:
    """Insert many jobs in one statement, from one array a column.

    Parameters: an array for each name in `columns`, of its column's type; those of JSON columns as texts; one value for each
    name in `equal`;
    `delays` (intervals or null) and `ats` (instants or null), from which `scheduled_at` is made.
    Clock: the database's `now()`, to which delays are added and below which no `at` reaches.
    Shape: no rows returned: ids are made by the client. Locks: none but the new rows'.
    """
    names, chosen, _ = new_rows(t, columns)
    once = [sa.cast(sa.bindparam(name, type_=t.job.c[name].type), t.job.c[name].type) for name in equal]
    return upsert(t.job).from_select([*names, *equal], chosen.add_columns(*once))


@statement
def inserted_jobs(t: Tables) -> sa.Select[Any]:
    """Return the jobs that this transaction has inserted.

    Shape: `(type_name, queue, input)` per job, by id. Index: `ix_job_history`.
    """
    job = t.job
    current: Any = sa.literal_column("pg_current_xact_id()")
    blocks = [sa.cast(sa.cast(xid, sa.Text), sa.BigInteger).op(">>")(sa.text("6")) for xid in (job.c.changed_xid, current)]
    # A job that it changes has the transaction's number as well, and was created before.
    is_new = (job.c.changed_xid == current, blocks[0] == blocks[1], job.c.created_at == sa.func.now())
    return sa.select(job.c.type_name, job.c.queue, job.c.input).where(*is_new).order_by(job.c.id)


@bound
def unless_taken(t: Tables, inserted: Insert) -> Insert:
    """Return an insert that leaves out jobs whose key an open chain has; an equal key that is being written is awaited.

    Index: `uq_job_deduplication`.
    """
    where: sa.ColumnElement[bool] = sa.literal_column(
        "deduplication_key IS NOT NULL AND chain_index = 0 AND chain_completed_at IS NULL"
    )
    unique = [t.job.c.chain_type_name, t.job.c.deduplication_key]
    return inserted.on_conflict_do_nothing(index_elements=unique, index_where=where)


def new_rows(
    t: Tables, columns: Sequence[str], *, targets: str | None = None
) -> tuple[list[str], sa.Select[Any], TableValuedAlias]:
    """Return the columns of `enqueue_many`, the select that makes their values, and the relation of arrays it reads.

    `targets`: an array of jobs to which these belong, the column `target`; the names of the others begin with `next_`.
    """
    job, prefix = t.job, "next_" if targets else ""
    arrays: list[Any] = [t.ids(targets)] if targets else []
    read: list[Any] = [sa.column("target", t.id_type)] if targets else []
    for name in columns:
        kind: Any = sa.Text() if isinstance(job.c[name].type, sa.JSON) else job.c[name].type
        arrays.append(array(f"{prefix}{name}", kind))
        read.append(sa.column(name, kind))
    read += [sa.column("delay", INTERVAL()), sa.column("at", TIMESTAMP(timezone=True))]
    arrays += [array(f"{prefix}delays", INTERVAL()), array(f"{prefix}ats", TIMESTAMP(timezone=True))]
    new_jobs = sa.func.unnest(*arrays).table_valued(*read).render_derived("given")
    values = [
        sa.cast(new_jobs.c[name], job.c[name].type) if isinstance(job.c[name].type, sa.JSON) else new_jobs.c[name]
        for name in columns
    ]
    due = sa.func.greatest(
        new_jobs.c.at, sa.func.now() + sa.func.coalesce(new_jobs.c.delay, sa.literal_column("interval '0'"))
    )
    return [*columns, "scheduled_at"], sa.select(*values, due).select_from(new_jobs), new_jobs


def job_queue(t: Tables) -> sa.TableClause:
    """Return the updatable view, the one place where a job is cancelled, redriven or rescheduled."""
    return sa.table(
        t.layout.name("job_queue"),
        sa.column("id", id_parameter(t.layout)),
        sa.column("queue", sa.Text),
        sa.column("fairness_key", sa.Text),
        sa.column("type_name", sa.Text),
        sa.column("input", JSONB),
        sa.column("status", t.job.c.status.type),
        sa.column("scheduled_at", TIMESTAMP(timezone=True)),
        schema=t.layout.quoted_schema,
    )


@statement
def named(t: Tables, columns: tuple[str, ...]) -> sa.Select[Any]:
    """Return columns of some jobs. Parameters: `ids`.

    Shape: `columns` of those that exist, unordered. Locks: none. Index: the primary key.
    """
    return sa.select(*(t.job.c[name] for name in columns)).where(t.job.c.id == sa.any_(t.ids("ids")))


@bound
def lock(t: Tables, ids: Sequence[JobId], *, blockers: bool = False, for_update: bool = True) -> sa.Select[Any]:
    """Lock jobs and the roots of their chains, and return their status; with `blockers` also the chains they wait for.

    `for_update`: False only reads them.

    Shape: `(id, status, chain_id, has_waiters)` of all that exist, each as of the moment it was locked; `has_waiters` is set
    for the root of a chain with waiters.
    Locks: the rows, until the caller's transaction ends; waits for held ones, in the common order of locks: roots by id,
    then continuations by id. They include the rows that the view locks. Index: the primary key.
    """
    job, edge = t.job, t.blocker
    job_ids = sa.any_(t.given_ids(ids))
    named_job = job.alias("meant")
    chosen: Any = sa.select(sa.func.unnest(array_of([named_job.c.id, named_job.c.chain_id]))).where(
        named_job.c.id == job_ids
    )
    if blockers:
        chosen = chosen.union_all(sa.select(edge.c.blocked_by_chain_id).where(edge.c.job_id == job_ids, ~edge.c.is_resolved))
    rows = (
        sa.select(job.c.id, job.c.status, job.c.chain_id, job.c.has_waiters)
        .where(job.c.id == sa.any_(sa.func.array(chosen.scalar_subquery())))
        .order_by(job.c.root_id.is_not(None), job.c.id)
    )
    return rows.with_for_update(key_share=True) if for_update else rows


@statement
def uncounted(t: Tables) -> sa.Select[Any]:
    """Count the attempts of a job that do not count. Parameters: `job_id`. Shape: one number. Index: `pk_job_attempt`."""
    outcomes = [
        sa.cast(outcome.value, t.attempt.c.outcome.type) for outcome in (AttemptOutcome.SNOOZED, AttemptOutcome.RELEASED)
    ]
    return sa.select(sa.func.count()).where(t.attempt.c.job_id == t.id("job_id"), t.attempt.c.outcome.in_(outcomes))


@bound
def change(t: Tables, /, ids: Sequence[JobId], **values: Any) -> sa.Update:
    """Change `status` or `scheduled_at` of jobs through the view, which does what that means or refuses.

    Obliges: `lock` them first, so that rows are taken in the one order. Index: the primary key.
    """
    view = job_queue(t)
    return sa.update(view).where(view.c.id == sa.any_(t.given_ids(ids))).values(**values)


@statement
def replace_input(t: Tables) -> sa.Update:
    """Replace the input of one dead job.

    Parameters: `job_id`, `new_input`, `new_version`. Changes: `input`, `input_version`.
    Obliges: `lock` it first. Index: the primary key.
    """
    columns = t.job.c
    return (
        sa.update(t.job)
        .where(columns.id == sa.bindparam("job_id", type_=columns.id.type), columns.status == status(JobStatus.DEAD))
        .values(
            input=sa.bindparam("new_input", type_=columns.input.type),
            input_version=sa.bindparam("new_version", type_=columns.input_version.type),
        )
        .execution_options(synchronize_session=False)
    )


@statement
def cancel(t: Tables) -> sa.Update:
    """Cancel jobs that have not ended. As the view does, without its function for each row.

    Parameters: `ids`. Changes: -> cancelled; a trigger ends their chains. Clock: the database's `now()`.
    Obliges: `lock` them first, `interrupt` those that run, at most `BATCH`. Index: the primary key.
    """
    return (
        sa.update(t.job)
        .where(t.job.c.id == sa.any_(t.ids("ids")))
        .values(
            status=status(JobStatus.CANCELLED),
            completed_at=sa.func.now(),
            leased_by=sa.null(),
            leased_until=sa.null(),
            changed_xid=sa.literal_column("'0'"),  # the trigger on the table writes what follows from it
        )
        .execution_options(synchronize_session=False)
    )


@statement
def touch(t: Tables) -> sa.Update | None:
    """Have the `onupdate` of the application's columns applied after a change through the view; None if there is none.

    Parameters: `ids`. Obliges: `lock` them first. Index: the primary key.
    """
    if all(column.onupdate is None for column in t.job.c):
        return None
    chosen = t.job.c.id == sa.any_(t.ids("ids"))
    return sa.update(t.job).where(chosen).values(has_waiters=t.job.c.has_waiters)


@statement
def interrupt(t: Tables, outcome: AttemptOutcome) -> sa.Insert:
    """Record how the current attempts of running jobs ended. Parameters: `ids`. Obliges: the jobs are locked.
    Index: the primary keys."""
    chosen = sa.select(
        t.job.c.id, t.job.c.attempt, t.job.c.leased_by, t.job.c.started_at, sa.literal_column(f"'{outcome}'")
    ).where(t.job.c.id == sa.any_(t.ids("ids")), t.job.c.status == status(JobStatus.RUNNING))
    names = ["job_id", "attempt", "worker_id", "started_at", "outcome"]
    return upsert(t.attempt).from_select(names, chosen).on_conflict_do_nothing()


@statement
def unknown_types(t: Tables) -> sa.Select[Any]:
    """Return types of due jobs that no live worker has a handler for.

    Parameters: `queues`, `types` that the calling worker knows, `ttl` of a worker's heartbeat.
    Shape: `(type_name,)`, distinct, from the 1,000 oldest due jobs of each queue, and from the oldest of each fairness key
    and priority, of 1,000 of those: a job without a handler becomes the oldest there in time, and deeper ones are reported
    later.
    Index: `ix_job_claim`.
    """
    queue = relation("queue", name=array("queues", sa.Text()))
    oldest = (
        sa.select(t.job.c.type_name)
        .where(
            t.job.c.status == status(JobStatus.PENDING),
            t.job.c.priority >= sa.literal_column("'-9'"),
            t.job.c.queue == queue.c.name,
            t.job.c.fairness_key == sa.literal_column("''"),
            t.job.c.scheduled_at <= sa.func.now(),
        )
        .limit(sa.literal_column("1000"))
        .lateral("oldest")
    )
    lane = heads(t, t.job.c.type_name).subquery("head")
    in_parts = sa.select(lane.c.type_name).where(
        is_keyed(lane.c), lane.c.queue == sa.any_(array("queues", sa.Text())), lane.c.scheduled_at <= sa.func.now()
    )
    in_queues = sa.select(oldest.c.type_name).select_from(queue.join(oldest, sa.literal_column("true")))
    due_types = sa.union_all(in_queues, in_parts).subquery("found")
    served: sa.Select[Any] = sa.select(sa.literal_column("1")).where(
        alive_until(t.worker) > sa.func.now(),
        due_types.c.type_name == sa.any_(t.worker.c.job_types),
    )
    return (
        sa.select(due_types.c.type_name)
        .where(~(due_types.c.type_name == sa.any_(array("types", sa.Text()))), ~served.exists())
        .distinct()
    )


@statement
def unserved_queues(t: Tables) -> sa.Select[Any]:
    """Return the queues with due jobs, including jobs with a fairness key, that no live worker serves.

    Parameters: `ttl` of a worker's heartbeat. Shape: `(name,)`, by name.
    Index: `ix_job_claim`, one probe per queue or fairness key to find the next name after the one before, and one more per
    unserved queue.
    """
    pending = sa.select(t.job.c.queue).where(
        t.job.c.status == status(JobStatus.PENDING), t.job.c.priority >= sa.literal_column("'-9'")
    )
    names = pending.order_by(t.job.c.queue).limit(sa.literal_column("1")).cte("names", recursive=True)
    following = pending.where(t.job.c.queue > names.c.queue).order_by(t.job.c.queue).limit(sa.literal_column("1"))
    names = names.union_all(
        sa.select(following.correlate(names).scalar_subquery()).where(names.c.queue.is_not(None)),
    )
    # A scalar subquery: an EXISTS may be planned as a join, which walks all due jobs for each queue.
    first_due = pending.where(t.job.c.queue == names.c.queue, t.job.c.scheduled_at <= sa.func.now()).limit(
        sa.literal_column("1")
    )
    is_due = first_due.correlate(names).scalar_subquery().is_not(None)
    queue = names.c.queue
    serving: sa.Select[Any] = sa.select(sa.literal_column("1")).where(
        alive_until(t.worker) > sa.func.now(), queue == sa.any_(t.worker.c.queues)
    )
    # Few are unserved, so few are probed.
    is_left = sa.case((serving.correlate(names).exists(), sa.literal_column("false", sa.Boolean)), else_=is_due)
    return sa.select(queue).where(names.c.queue.is_not(None), is_left).order_by(queue)


@statement
def short_inputs(t: Tables) -> sa.Select[Any]:
    """Return the inputs of jobs that are short enough for a list.

    Parameters: `ids`; `most`, bytes as stored. Shape: `(id, input)`. Locks: none. Index: the primary key.
    """
    is_short = sa.func.pg_column_size(t.job.c.input) <= sa.bindparam("most", type_=sa.Integer)
    return sa.select(t.job.c.id, t.job.c.input).where(t.job.c.id == sa.any_(t.ids("ids")), is_short)


def with_ends(column: Any, start: str, end: str, *, limit: int) -> sa.Select[Any]:
    """Return the UUIDs that begin and end with these hexadecimal digits.

    Shape: up to `limit` `(id,)`, ascending. Index: the primary key, in the range of those with the start. Locks: none.
    """
    first, last = (UUID(start.ljust(32, digit)) for digit in "0f")
    digits = sa.func.replace(sa.cast(column, sa.Text), "-", "")
    matching = (column.between(first, last), digits.endswith(end, autoescape=True))
    return sa.select(column).where(*matching).order_by(column).limit(limit)

"""A bulk write's way from the staging table into the queue, all of it inside one transaction that the ledger guards.

Staged rows are known by `(write_id, sequence)` and by the tasks that the writer says succeeded: others may have left
rows there as well. None of these statements is bound to a worker's guards; `guard` sets what they need for their
transaction, for the statistics of a table that is filled and emptied are never right.
"""

from __future__ import annotations

from itertools import chain
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.dialects.postgresql import insert as upsert

from sa_jobqueue.models import Job
from sa_jobqueue.models.options import DECLARED, JOB_OPTIONS, OF_ROW
from sa_jobqueue.statements._parts import Tables, array, bound, statement, status, table
from sa_jobqueue.types import JobStatus, OnFailure

STAGED = tuple(column.name for column in table(Job.Stage).c if column.name != "staged_at")
"""The columns of `job_bulk_staging` that a task writes, in the order it writes them."""
_KEY = ("write_id", "sequence", "task_id", "row")

_DECLARED = tuple(name for name in DECLARED if JOB_OPTIONS[name].default is not None)
"""Columns without which a row has the recorded values of its type, those of the others included."""

COUNTED = ("staged", "enqueued", "duplicates", "rejected")
"""The columns of `job_bulk_write` that count rows."""


@bound
def copy_staged(t: Tables) -> str:
    """Return the COPY that takes a task's rows as CSV, a null as nothing at all and text that is empty as `""`.

    Changes: adds rows to the staging table. Locks: none that others wait for.
    """
    return f"COPY {t.layout.qualified('job_bulk_staging')} ({', '.join(STAGED)}) FROM STDIN (FORMAT csv)"


def guard() -> sa.Select[Any]:
    """Set, until the transaction ends, what these statements need.

    Joins by hash, whatever an empty table's statistics say: nested loops over the staging table are quadratic. No
    compilation of expressions, which takes longer than it saves here; room to sort keys in.
    """
    settings = {"enable_nestloop": "off", "enable_mergejoin": "off", "jit": "off", "work_mem": "64MB"}
    return sa.select(*(sa.func.set_config(name, value, sa.literal_column("true")) for name, value in settings.items()))


@statement
def take_write(t: Tables) -> sa.Insert:
    """Enter a write into the ledger, unless it is there.

    Parameters: `write_id`, `sequence`, `written_by`. Shape: `(sequence,)`, or nothing when it has been written before.
    Locks: the ledger's row; a transaction that enters the same write meanwhile waits for the end of this one.
    Obliges: READ COMMITTED; it comes first in the transaction, `account` tells the numbers later. Index:
    `pk_job_bulk_write`.
    """
    zero: sa.ColumnElement[int] = sa.literal_column("0")
    parameters = {name: sa.bindparam(name, type_=t.write.c[name].type) for name in ("write_id", "sequence", "written_by")}
    return (
        upsert(t.write)
        .values(parameters | dict.fromkeys((*COUNTED, "fingerprint"), zero))
        .on_conflict_do_nothing(index_elements=[t.write.c.write_id, t.write.c.sequence])
        .returning(t.write.c.sequence)
    )


@statement
def account(t: Tables) -> sa.Update:
    """Record the result of a write.

    Parameters: `of_write_id`, `of_sequence`; the numbers, `fingerprint` and `row_hashes` by their names.
    Obliges: `take_write` in the same transaction. Index: `pk_job_bulk_write`.
    """
    names = (*COUNTED, "fingerprint", "row_hashes")
    values = {name: sa.bindparam(name, type_=t.write.c[name].type) for name in names}
    return sa.update(t.write).where(*_is_write(t.write, "of_")).values(values)


@statement
def row_hashes(t: Tables) -> sa.Select[Any]:
    """Return the hashes of the rows of a write.

    Parameters: `write_id`, `sequence`. Shape: `(row_hashes,)`, null if they are not kept, or no row. Locks: none. Index:
    `pk_job_bulk_write`.
    """
    return sa.select(t.write.c.row_hashes).where(*_is_write(t.write))


@statement
def forget_hashes(t: Tables) -> sa.Update:
    """Delete the hashes of the rows of writes older than an age.

    Parameters: `age`, an interval. Clock: the database's `now()`. Locks: these rows of the ledger, but those that another
    transaction has locked are left. Index: `ix_job_bulk_write_hashes`.
    """
    key = (t.write.c.write_id, t.write.c.sequence)
    is_old = t.write.c.written_at < sa.func.now() - sa.bindparam("age", type_=sa.Interval)
    old = sa.select(*key).where(t.write.c.row_hashes.is_not(None), is_old).with_for_update(skip_locked=True)
    return sa.update(t.write).where(sa.tuple_(*key).in_(old)).values(row_hashes=sa.null())


@statement
def find_write(t: Tables) -> sa.Select[Any]:
    """Return the ledger's entry of a write, if it has committed.

    Parameters: `write_id`, `sequence`. Shape: `(staged, enqueued, duplicates, rejected, fingerprint)`, or no row.
    Locks: none. Index: `pk_job_bulk_write`.
    """
    return sa.select(*(t.write.c[name] for name in COUNTED), t.write.c.fingerprint).where(*_is_write(t.write))


@statement
def count_staged(t: Tables) -> sa.Select[Any]:
    """Count the rows that a write's tasks have staged, by queue.

    Parameters: `write_id`, `sequence`, `task_ids`.
    Shape: `(queue, staged, rejected, keyed, waiting, fairness_key)`, one row a queue; null for the queue that the type
    declares, and for rejected rows. `fairness_key` is one that it has jobs of, if any. `keyed` have a deduplication key,
    `waiting` have blockers. Index: `ix_job_bulk_staging_write`.
    """
    return (
        sa.select(
            t.stage.c.queue,
            sa.func.count(),
            sa.func.count(t.stage.c.rejected_reason),
            sa.func.count(t.stage.c.deduplication_key),
            sa.func.count(t.stage.c.blockers),
            sa.func.max(t.stage.c.fairness_key).label("fairness_key"),
        )
        .where(*_of_write(t.stage))
        .group_by(t.stage.c.queue)
    )


@statement
def enqueue_staged(t: Tables, *, keyed: bool, skip: bool) -> sa.Select[Any]:
    """Insert jobs from the rows that a write's tasks have staged, and the edges to the chains they wait for, new or old.

    `keyed`: whether any row has a deduplication key. The rows are then inserted in the order of type and key, so that two
    such writes wait for each other and do not deadlock; otherwise in that of their ids.
    `skip`: leave out rows whose key belongs to an open chain; otherwise they are a unique violation.
    Parameters: `write_id`, `sequence`, `task_ids`; parallel arrays `ended_ids`, `completed`: the chains that were there and
    have ended, and whether they completed. Where `queue`, `priority`, `max_attempts` or `input_version` is null, the row has
    the recorded values of its type.
    Shape: `(enqueued,)`, one number. Changes: a pending or blocked row a job, `has_waiters` on new jobs waited for, an edge
    for each blocker of each job that was not left out.
    Clock: the database's `now()`, to which delays are added, and which is the earliest possible time.
    Locks: the new rows; it waits for transactions that insert an equal key. Obliges: the chains that were there are locked
    by this transaction and marked as awaited, those that are open; nothing waits for itself in a cycle.
    Index: `ix_job_bulk_staging_write`.
    """
    edge = _once(_edges(t, decided=True))
    waits = (
        sa.select(edge.c.job_id, sa.func.count().filter(~edge.c.is_resolved).label("open"))
        .group_by(edge.c.job_id)
        .cte("waits")
    )
    awaited = sa.select(edge.c.chain_id).distinct().cte("awaited")
    source = t.stage.outerjoin(waits, waits.c.job_id == t.stage.c.id).outerjoin(awaited, awaited.c.chain_id == t.stage.c.id)
    still_open = sa.func.coalesce(waits.c.open, sa.literal_column("0"), type_=sa.Integer)
    values = {
        "status": sa.cast(
            sa.case((still_open > sa.literal_column("0"), status(JobStatus.BLOCKED)), else_=status(JobStatus.PENDING)),
            t.job.c.status.type,
        ),
        "open_blockers": still_open,
        "has_waiters": awaited.c.chain_id.is_not(None),
    }
    inserted = _insert(t, source, values, keyed=keyed, skip=skip).returning(t.job.c.id).cte("inserted")
    names = ["job_id", "blocked_by_chain_id", "index", "is_resolved", "on_failure", "trace_context"]
    edges = (
        sa.insert(t.blocker)
        .from_select(
            names,
            sa.select(
                edge.c.job_id, edge.c.chain_id, edge.c.place, edge.c.is_resolved, edge.c.on_failure, edge.c.trace_context
            ).select_from(edge.join(inserted, inserted.c.id == edge.c.job_id)),
        )
        .returning(sa.literal_column("1"))
        .cte("written")
    )
    return sa.select(sa.func.count()).select_from(inserted).add_cte(edges)


@statement
def chains_waited_for(t: Tables) -> sa.Select[Any]:
    """Name the chains that staged jobs wait for and that are not staged themselves.

    Parameters: `write_id`, `sequence`, `task_ids`. Shape: `(chain_id,)`, distinct, no order. Index:
    `ix_job_bulk_staging_write`.
    """
    edge = _once(_edges(t))
    new = t.stage.alias("new")
    in_write = sa.select(new.c.id).where(*_of_write(new), new.c.rejected_reason.is_(None), new.c.id == edge.c.chain_id)
    return sa.select(edge.c.chain_id).where(~in_write.exists()).distinct()


@statement
def circular_edges(t: Tables) -> sa.Select[Any]:
    """Return the edges that a cycle could contain: from the blocking chains to the jobs that wait for them.

    Parameters: `write_id`, `sequence`, `task_ids`. Shape: `(job_id, chain_id)`, unordered. Index:
    `ix_job_bulk_staging_write`.
    """
    edge = _once(_edges(t))
    waiting, awaited = edge.alias("waiting"), edge.alias("awaited")
    return sa.select(edge.c.job_id, edge.c.chain_id).where(
        edge.c.chain_id.in_(sa.select(waiting.c.job_id)), edge.c.job_id.in_(sa.select(awaited.c.chain_id))
    )


@statement
def reject_staged(t: Tables) -> sa.Insert:
    """Keep the rows of a write that could not be jobs. Parameters: `write_id`, `sequence`, `task_ids`.

    Index: `ix_job_bulk_staging_write`.
    """
    chosen = sa.select(*(t.stage.c[name] for name in (*_KEY, "rejected_field", "rejected_reason", "record")))
    return sa.insert(t.reject).from_select(
        [*_KEY, "field", "reason", "record"], chosen.where(*_of_write(t.stage), t.stage.c.rejected_reason.is_not(None))
    )


@statement
def reject_taken_ids(t: Tables) -> sa.Update:
    """Mark staged rows as rejected whose id a job has, and all but one of those that share an id.

    Parameters: `of_write_id`, `of_sequence`, `of_task_ids`. Shape: none; the count of rows is that of rows marked.
    Locks: the staged rows. Index: `ix_job_bulk_staging_write`; it reads the whole queue, after a conflict only.
    """
    job, stage, each = t.job, t.stage, t.stage.alias("each")
    place = sa.func.row_number().over(partition_by=each.c.id, order_by=(each.c.task_id, each.c.row))
    repeated = (
        sa.select(each.c.task_id, each.c.row, place.label("place"), job.c.id.label("job_id"))
        .select_from(each.outerjoin(job, job.c.id == each.c.id))
        .where(*_of_write(each, "of_"), each.c.rejected_reason.is_(None))
        .subquery("found")
    )
    names = [name for name in STAGED if name not in {*_KEY, "input", "rejected_field", "rejected_reason", "record"}]
    pairs = chain.from_iterable((sa.literal_column(f"'{name}'"), stage.c[name]) for name in names)
    # Nulls are left out of the row, but not of its input.
    record = sa.func.jsonb_strip_nulls(sa.func.jsonb_build_object(*pairs)).op("||")(
        sa.func.jsonb_build_object(sa.literal_column("'input'"), stage.c.input)
    )
    return (
        sa.update(stage)
        .where(*_of_write(stage, "of_"), stage.c.task_id == repeated.c.task_id, stage.c.row == repeated.c.row)
        .where((repeated.c.place > sa.literal_column("1")) | repeated.c.job_id.is_not(None))
        .values(
            rejected_field=sa.literal_column("'id'"),
            rejected_reason=sa.literal_column("'is that of another job, in the queue or in this write'"),
            record=sa.cast(record, sa.Text),
        )
    )


@statement
def clear_stage(t: Tables) -> sa.Delete:
    """Delete the rows that a write has staged, in this part of it and in those before, by whatever task.

    Parameters: `write_id`, `sequence`. Index: `ix_job_bulk_staging_write`.
    """
    return sa.delete(t.stage).where(
        t.stage.c.write_id == sa.bindparam("write_id", type_=sa.Text),
        t.stage.c.sequence <= sa.bindparam("sequence", type_=sa.BigInteger),
    )


@statement
def clear_tasks(t: Tables) -> sa.Delete:
    """Delete the rows that the tasks of one writer have staged. Another writer of the same write keeps its rows.

    Parameters: `write_id`, `sequence`, `first_task_id`, `last_task_id`. Index: `ix_job_bulk_staging_write`.
    """
    first, last = (sa.bindparam(name, type_=sa.BigInteger) for name in ("first_task_id", "last_task_id"))
    return sa.delete(t.stage).where(*_is_write(t.stage), t.stage.c.task_id.between(first, last))


@statement
def clear_left_over(t: Tables) -> sa.Delete:
    """Delete staged rows of writes that died. Parameters: `age`, an interval. Index: none, it reads the staging table."""
    return sa.delete(t.stage).where(t.stage.c.staged_at < sa.func.now() - sa.bindparam("age", type_=sa.Interval))


def _of_write(stage: sa.FromClause, prefix: str = "") -> list[sa.ColumnElement[bool]]:
    return [*_is_write(stage, prefix), stage.c.task_id == sa.any_(array(f"{prefix}task_ids", sa.BigInteger()))]


def _is_write(rows: sa.FromClause, prefix: str = "") -> list[sa.ColumnElement[bool]]:
    # With a prefix in an UPDATE, which sets each column that a parameter is named as.
    return [
        rows.c.write_id == sa.bindparam(f"{prefix}write_id", type_=sa.Text),
        rows.c.sequence == sa.bindparam(f"{prefix}sequence", type_=sa.BigInteger),
    ]


def _once(edges: sa.Select[Any]) -> sa.CTE:
    """Return a materialized CTE of blockers. Joined directly, they may be computed again for every staged row."""
    return edges.cte("edge").prefix_with("MATERIALIZED")


def _edges(t: Tables, *, decided: bool = False) -> sa.Select[Any]:
    """Return the staged blockers; with `decided`, also whether each of them is resolved."""
    each = (
        sa.func.unnest(t.stage.c.blockers)
        .table_valued(sa.column("chain_id", t.id_type), with_ordinality="ordinal", joins_implicitly=True)
        .render_derived("each")
    )
    on_failure = sa.func.coalesce(t.stage.c.on_failure, sa.literal_column(f"'{OnFailure.WAIT}'"), type_=sa.Text)
    columns: list[Any] = [t.stage.c.id.label("job_id"), each.c.chain_id]
    chosen: sa.Select[Any]
    if not decided:
        chosen = sa.select(*columns).select_from(t.stage, each)
    else:
        ended = (
            sa.func.unnest(t.ids("ended_ids"), array("completed", sa.Boolean()))
            .table_valued(sa.column("chain_id", t.id_type), sa.column("completed", sa.Boolean))
            .render_derived("ended")
        )
        fails = ~ended.c.completed & (on_failure != sa.literal_column(f"'{OnFailure.CONTINUE}'"))
        columns += [
            sa.cast(each.c.ordinal - sa.literal_column("1"), sa.Integer).label("place"),
            (ended.c.chain_id.is_not(None) & ~fails).label("is_resolved"),
            sa.cast(on_failure, t.blocker.c.on_failure.type).label("on_failure"),
            t.stage.c.trace_context,
        ]
        reached = t.stage.join(each, sa.literal_column("true")).outerjoin(ended, ended.c.chain_id == each.c.chain_id)
        chosen = sa.select(*columns).select_from(reached)
    return chosen.where(*_of_write(t.stage), t.stage.c.rejected_reason.is_(None), t.stage.c.blockers.is_not(None))


def _insert(t: Tables, source: sa.FromClause, decided: dict[str, Any], *, keyed: bool, skip: bool) -> Any:
    job, stage = t.job, t.stage

    def as_declared(name: str) -> sa.ColumnElement[Any]:
        default, kind = JOB_OPTIONS[name].default, job.c[name].type
        if default is None:
            return sa.func.coalesce(stage.c[name], sa.case((is_incomplete, t.job_type.c[name])), type_=kind)
        literal: sa.ColumnElement[Any] = sa.literal_column(
            f"'{default}'" if isinstance(default, str) else str(default), kind
        )
        return sa.func.coalesce(stage.c[name], t.job_type.c[name], literal, type_=kind)

    # As the trigger `tr_job_declared` does for other inserts; one join costs a tenth of as many calls of its function.
    source = source.outerjoin(t.job_type, t.job_type.c.type_name == stage.c.type_name)
    is_incomplete = sa.or_(*(stage.c[name].is_(None) for name in _DECLARED))
    due = sa.func.greatest(
        stage.c.scheduled_at, sa.func.now() + sa.func.coalesce(stage.c.delay, sa.literal_column("interval '0'"))
    )
    values: dict[str, Any] = {
        "id": stage.c.id,
        "fairness_key": sa.func.coalesce(stage.c.fairness_key, sa.literal_column("''"), type_=sa.Text),
        "type_name": stage.c.type_name,
        "chain_id": stage.c.id,
        "chain_type_name": stage.c.type_name,
        "input": sa.func.coalesce(stage.c.input, sa.cast(sa.literal_column("'null'"), JSONB), type_=JSONB),
        "scheduled_at": due,
        "trace_context": stage.c.trace_context,
        "chain_trace_context": stage.c.trace_context,
        **{name: as_declared(name) for name in DECLARED},
        **{name: stage.c[name] for name in OF_ROW},
    } | decided
    # By code point: any order will do that all writes share. The first of equal keys is the one that stays.
    by_key = sa.collate(stage.c.type_name, "C"), sa.collate(stage.c.deduplication_key, "C"), stage.c.task_id, stage.c.row
    # By id otherwise: the indexes grow at their end, which leaves that of claims two fifths smaller.
    chosen = (
        sa.select(*values.values())
        .select_from(source)
        .where(*_of_write(stage), stage.c.rejected_reason.is_(None))
        .order_by(*(by_key if keyed else (stage.c.id,)))
    )
    statement = upsert(job).from_select(list(values), chosen)
    if keyed and skip:
        statement = statement.on_conflict_do_nothing(
            index_elements=[job.c.chain_type_name, job.c.deduplication_key],
            index_where=sa.literal_column(
                "deduplication_key IS NOT NULL AND chain_index = 0 AND chain_completed_at IS NULL"
            ),
        )
    return statement

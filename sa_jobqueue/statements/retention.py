"""Retention: which chains ended long enough ago, found in pages by id, and locked before they go.

Which of them others refer to, and taking them out: `statements/deletion.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, INTERVAL, JSONB, aggregate_order_by
from sqlalchemy.dialects.postgresql import array as array_of
from sqlalchemy.sql.dml import ReturningDelete

from sa_jobqueue.policies.retention import OUTCOMES
from sa_jobqueue.statements._parts import Tables, statement

_INSTANT: Final = sa.DateTime(timezone=True)


def bounded() -> sa.Select[Any]:
    """Wait for no lock longer than `seconds`, a parameter, until the transaction ends. Shape: one row."""
    patience = sa.func.concat(sa.bindparam("seconds", type_=sa.Integer), sa.literal_column("'s'"))
    return sa.select(sa.func.set_config(sa.literal_column("'lock_timeout'"), patience, sa.true()))


@statement
def of_queues(t: Tables) -> sa.Select[Any]:
    """Return how long queues keep their chains, where an operator has set it.

    Shape: `(name, completed, cancelled, dead)` per queue with any of these settings; unordered. Locks: none.
    """
    ages = [t.queue.c[f"retain_{outcome}"] for outcome in OUTCOMES]
    return sa.select(t.queue.c.name, *ages).where(
        t.queue.c.fairness_key == sa.literal_column("''"), sa.func.coalesce(*ages).is_not(None)
    )


@statement
def expired_chains(t: Tables, *, first: bool) -> sa.Select[Any]:
    """Read one page of jobs, by id, and return the chains among them that have ended, have no waiters and have expired.

    Parameters: `after`, unless it is the `first` page; `scan`, how many jobs to look at; `rules`, the document of
    `RetentionRules`, and `shortest`, the shortest age in it; `ended_before`: chains that ended later stay; null for none.
    Shape: one row `(scanned, last_id, is_young, ids)`: how many jobs were looked at, the last of them, whether all were
    created so lately that none can go, and the chains found, by id; null for none.
    Clock: the database's `now()`. Locks: none. Index: the primary key, `scan` entries.
    """
    names = ("root_id", "type_name", "queue", "status", "chain_status", "chain_completed_at", "has_waiters")
    return _page(t, t.job, *names, since="created_at", first=first, due=partial(_expired, t))


@statement
def expired_dead_letters(t: Tables, *, first: bool) -> sa.Select[Any]:
    """Read one page of dead letters, by id, and return those that were resolved long enough ago.

    Parameters, Shape, Clock, Locks: as `expired_chains`. The dead letter of a job that is still dead is not returned.
    Index: the primary key, `scan` entries; that of the jobs, one probe per dead letter that is due.
    """

    def due(dead_letters: Any) -> list[sa.ColumnElement[bool]]:
        # A value, not a join: a plan from the statistics of empty tables would read all jobs.
        is_dead = (
            sa.select(sa.cast(t.job.c.status, sa.Text) == sa.literal_column("'dead'"))
            .where(t.job.c.id == dead_letters.c.job_id)
            .scalar_subquery()
        )
        return [
            dead_letters.c.resolved_at < sa.func.now() - _age(dead_letters, sa.literal_column("'dead_letters'")),
            is_dead.is_not(sa.true()),
        ]

    names = ("job_id", "type_name", "queue", "resolved_at")
    return _page(t, t.dead_letter, *names, since="died_at", first=first, due=due)


@statement
def expired_audit(t: Tables, *, first: bool) -> sa.Select[Any]:
    """Read one page of audit records, by id, and return those that are older than the rule's age.

    Parameters, Shape, Clock, Locks: as `expired_chains`; the age is `shortest`, as only the default rule has one.
    Index: the primary key, `scan` entries.
    """

    def due(page: Any) -> list[sa.ColumnElement[bool]]:
        return [page.c.done_at < sa.func.now() - sa.bindparam("shortest", type_=INTERVAL)]

    return _page(t, t.audit, since="done_at", first=first, due=due)


def _page(
    t: Tables, row: sa.Table, *names: str, since: str, first: bool, due: Callable[[Any], list[sa.ColumnElement[bool]]]
) -> sa.Select[Any]:
    page = sa.select(*(row.c[name] for name in ("id", *names, since))).order_by(row.c.id)
    if not first:
        page = page.where(row.c.id > t.id("after"))
    page_rows = page.limit(sa.bindparam("scan", type_=sa.Integer)).cte("page")
    ids = aggregate_order_by(page_rows.c.id, page_rows.c.id.asc())
    return sa.select(
        sa.func.count().label("scanned"),
        # Not max(): PostgreSQL has it for UUIDs since version 18.
        sa.select(page_rows.c.id)
        .order_by(page_rows.c.id.desc())
        .limit(sa.literal_column("1"))
        .scalar_subquery()
        .label("last_id"),
        sa.func.bool_and(page_rows.c[since] >= sa.func.now() - sa.bindparam("shortest", type_=INTERVAL)).label("is_young"),
        sa.func.array_agg(ids).filter(*due(page_rows)).label("ids"),
    )


@statement
def delete_dead_letters(t: Tables) -> ReturningDelete[Any]:
    """Delete dead letters. Parameters: `ids`. Shape: `(id,)` of each that was deleted, unordered.

    Locks: the rows, until the transaction ends; held ones are skipped. Index: the primary key.
    """
    row = t.dead_letter
    free = sa.select(row.c.id).where(row.c.id == sa.any_(t.ids("ids"))).with_for_update(skip_locked=True).cte("free")
    chosen = sa.func.array(sa.select(free.c.id).scalar_subquery(), type_=ARRAY(t.id_type))
    return sa.delete(row).where(row.c.id == sa.any_(chosen)).returning(row.c.id)


@statement
def delete_audit(t: Tables) -> ReturningDelete[Any]:
    """Delete audit records. Parameters: `ids`. Shape: `(id,)` of each that was deleted, unordered.

    Locks: the rows, until the transaction ends. Index: the primary key.
    """
    ids = sa.bindparam("ids", type_=ARRAY(t.audit.c.id.type))
    return sa.delete(t.audit).where(t.audit.c.id == sa.any_(ids)).returning(t.audit.c.id)


@statement
def roots(t: Tables, *, lock: bool) -> sa.Select[Any]:
    """Return those of some chains that have ended, have no waiters and have expired.

    Parameters: `ids`, of roots; `rules` and `ended_before`, as of `expired_chains`. Shape: `(id, type_name, outcome)`,
    by id.
    Clock: the database's `now()`. Locks: with `lock` the roots, in the order of their ids, also against foreign keys to
    them: none can be redriven, and no job can start to wait for one. Held ones are skipped. Index: the primary key.
    """
    chosen = (
        sa.select(t.job.c.id, t.job.c.type_name, _outcome(t.job).label("outcome"))
        .where(t.job.c.id == sa.any_(t.ids("ids")), *_expired(t, t.job))
        .order_by(t.job.c.id)
    )
    return chosen.with_for_update(skip_locked=True) if lock else chosen


@statement
def has_archive(t: Tables) -> sa.Select[Any]:
    """Return whether the database has the table of the archive that `archived_chains` reads. Shape: one boolean."""
    # Asked of the database, because the process that prunes may have a model without the pipeline.
    name = sa.bindparam("archive_chain", t.layout.qualified("archive_chain"), type_=sa.Text)
    return sa.select(sa.func.to_regclass(name).is_not(None))


@statement
def archived_chains(t: Tables) -> sa.Select[Any]:
    """Return those of some chains that an unfinished run of the archive has planned or written.

    Parameters: `ids`, of roots. Shape: `(chain_id,)`, unordered. Locks: none. Index: `pk_archive_chain`.
    Obliges: the roots were locked by an earlier statement of the same READ COMMITTED transaction. A run locks the roots
    that it plans until its plan is committed, so none can be planned after this statement.
    """
    chain_id: sa.ColumnClause[Any] = sa.column("chain_id", t.job.c.id.type)
    planned = sa.table(t.layout.name("archive_chain"), chain_id, schema=t.layout.quoted_schema)
    return sa.select(planned.c.chain_id).where(planned.c.chain_id == sa.any_(t.ids("ids")))


@statement
def dead_letter_chains(t: Tables) -> sa.Select[Any]:
    """Return the chains of dead letters. Parameters: `ids`. Shape: `(id, chain_id)`, unordered. Index: the primary key."""
    row = t.dead_letter
    return sa.select(row.c.id, row.c.chain_id).where(row.c.id == sa.any_(t.ids("ids")))


@statement
def share_roots(t: Tables) -> sa.Select[Any]:
    """Lock chains against a plan of the archive. Parameters: `ids`, of roots. Shape: `(id,)`, by id.

    Locks: the roots, shared, in the order of their ids; held ones are skipped. Index: the primary key.
    """
    root = sa.select(t.job.c.id).where(t.job.c.id == sa.any_(t.ids("ids"))).order_by(t.job.c.id)
    return root.with_for_update(read=True, skip_locked=True)


@statement
def lengths(t: Tables) -> sa.Select[Any]:
    """Count the continuations of chains. Parameters: `ids`. Shape: `(chain_id, n)` of those that have any, unordered.

    Locks: none. Index: `uq_job_chain`.
    """
    of_them = t.job.c.root_id == sa.any_(t.ids("ids"))
    return sa.select(t.job.c.root_id.label("chain_id"), sa.func.count().label("n")).where(of_them).group_by(t.job.c.root_id)


@statement
def waited_for(t: Tables) -> sa.Select[Any]:
    """Name the chains that jobs waited for. Parameters: `job_ids`. Shape: `(chain_id,)`, each once. Locks: none.

    Index: `pk_job_blocker`.
    """
    of_them = t.blocker.c.job_id == sa.any_(t.ids("job_ids"))
    return sa.select(t.blocker.c.blocked_by_chain_id).where(of_them).distinct()


def _outcome(chain: Any) -> sa.ColumnElement[str]:
    return sa.cast(sa.func.coalesce(chain.c.chain_status, chain.c.status), sa.Text)


def is_taken(t: Tables, root: Any) -> sa.ColumnElement[bool]:
    """Return that no open job waits for the result of a chain or refers to it (`AttemptContext.run`, `all`)."""
    step, waiter = t.step.alias("waiting"), t.job.alias("waiter")
    untaken: sa.Select[Any] = (
        sa.select(sa.literal_column("1"))
        .join_from(step, waiter, waiter.c.id == step.c.job_id)
        .where(
            step.c.child_chain_id == root.c.id,
            step.c.child_chain_id.is_not(None),
            step.c.completed_at.is_(None),
            waiter.c.completed_at.is_(None),
        )
        .limit(sa.literal_column("1"))
    )
    return untaken.correlate(root).scalar_subquery().is_(None)


def _expired(t: Tables, root: Any) -> list[sa.ColumnElement[bool]]:
    """Return the conditions for a root to have expired. An age that is not set is null, so the comparison is: it stays."""
    return [
        is_taken(t, root),
        root.c.root_id.is_(None),
        root.c.chain_completed_at.is_not(None),
        ~root.c.has_waiters,
        root.c.chain_completed_at < sa.func.now() - _age(root, _outcome(root)),
        root.c.chain_completed_at < sa.func.coalesce(sa.bindparam("ended_before", None, type_=_INSTANT), sa.func.now()),
    ]


def _age(row: Any, field: sa.ColumnElement[str]) -> sa.ColumnElement[Any]:
    """Return a field of the first rule that has it: of the row's type, its queue, or the default; null if none has."""
    rules = sa.bindparam("rules", type_=JSONB)
    places: tuple[tuple[Any, ...], ...] = (("types", row.c.type_name), ("queues", row.c.queue), ("default",))
    paths = (array_of([sa.literal_column(f"'{kind}'"), *name, field], type_=sa.Text) for kind, *name in places)
    return sa.cast(sa.func.coalesce(*(rules.op("#>>", return_type=sa.Text())(path) for path in paths)), INTERVAL)

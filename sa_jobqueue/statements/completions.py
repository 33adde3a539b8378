"""The end of attempts: completed, rescheduled, or dead. Every write is fenced by id, attempt and worker."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, JSONB, TIMESTAMP, insert
from sqlalchemy.sql.elements import ColumnElement, Grouping

from sa_jobqueue.statements._parts import (
    LAST_ATTEMPT,
    XID,
    Tables,
    array,
    element,
    fence,
    position,
    statement,
    status,
)
from sa_jobqueue.statements.session_names import current_name
from sa_jobqueue.types import JobStatus


@statement
def complete(t: Tables, *, in_session: bool = False) -> sa.Update:
    """Complete many attempts of one worker, each with its own output, where the job is its whole chain.

    A continuation, and a job that goes on in one, is `chains.complete`'s.
    Parameters: parallel arrays `ids`, `attempts`, `outputs` (JSON texts), at most `_parts.BATCH`; `worker_id`.
    Shape: `(id, has_waiters)` for each attempt that still was the worker's; the others were lost and nothing is written.
    With `in_session` it is for the transaction of a handler: `table_oid` is a parameter too, and each row ends as that of
    `complete_one` does.
    Changes: running -> completed; `output`, `completed_at`, `completed_by`; the lease and the chain end.
    Clock: the database's, at the start of the transaction.
    Locks: the rows, by id; a row that another transaction holds is skipped, so that one long transaction cannot delay the
    completions of all: `still_held` distinguishes it from a lost one.
    Index: the primary key.
    """
    output = element(array("outputs", sa.Text()), position(t.ids("ids"), t.job.c.id))
    return (
        sa.update(t.job)
        .where(fence(t, free(t.job, t.ids("ids")), in_session=in_session))
        .values(completion(output, ends_chain=t.job.c.chain_index == 0))
        .returning(t.job.c.id, t.job.c.has_waiters, *([current_name(), is_completed(t.job)] if in_session else []))
    )


@statement
def complete_one(t: Tables, *, continues: bool = False) -> sa.Update:
    """Complete one attempt in the transaction that holds its handler's own writes; otherwise as `complete`.

    With `continues` the chain does not end here. A continuation's root must be locked by `chains.lock` before, and ended
    by `chains.end` after.
    Parameters: `job_id`, `job_attempt`, `job_output` (JSON text; null when it goes on), `worker_id`, `table_oid`.
    Shape: one row `(id, has_waiters, session_name, is_completed)`: the name of the transaction it ran in, and whether the
    row that triggers have let through is completed. None for a lost attempt, and where the session does not see the row.
    Locks: the row, awaited.
    Obliges: commit only if it returned a row that is completed; otherwise everything must be rolled back.
    Index: the primary key; it is planned on the application's session, where one row by key needs no guards.
    """
    output = sa.bindparam("job_output", type_=sa.Text)
    return (
        sa.update(t.job)
        .where(fence(t, in_session=True))
        .values(completion(output, ends_chain=None if continues else t.job.c.chain_index == 0))
        .returning(t.job.c.id, t.job.c.has_waiters, current_name(), is_completed(t.job))
    )


def is_completed(job: sa.Table) -> ColumnElement[bool]:
    """Return whether a row is completed: of the row returned by an update, what triggers have made of it."""
    is_completed: ColumnElement[bool] = sa.cast(job.c.status, sa.Text) == sa.literal_column("'completed'")
    return is_completed.label("is_completed")


def free(job: sa.Table, ids: ColumnElement[Any]) -> ColumnElement[Any]:
    """Lock the rows that no other transaction holds, in the order of their ids, and return these ids as an array."""
    row = job.alias("row")
    locked_rows = (
        sa.select(row.c.id)
        .where(row.c.id == sa.any_(ids))
        .order_by(row.c.id)
        .with_for_update(key_share=True, skip_locked=True)
        .cte("free")
    )
    return sa.func.array(sa.select(locked_rows.c.id).scalar_subquery())


def completion(
    output: ColumnElement[Any], *, ends_chain: ColumnElement[bool] | None, is_claimed: bool = True
) -> dict[str, Any]:
    """Return the columns of a job that completes. `ends_chain`: whether its chain does; None if it goes on."""
    chain_end = {} if ends_chain is None else {"chain_completed_at": sa.case((ends_chain, sa.func.now()))}
    return {
        "status": status(JobStatus.COMPLETED),
        "output": sa.cast(output, JSONB),
        "completed_at": sa.func.now(),
        "completed_by": sa.bindparam("worker_id", type_=sa.Text) if is_claimed else sa.null(),
        "leased_by": sa.null(),
        "leased_until": sa.null(),
        "last_error": sa.null(),
        "changed_xid": XID,
        **chain_end,
    }


@statement
def finish(t: Tables) -> sa.Select[Any]:
    """End many attempts of one worker without success: rescheduled, dead or cancelled, each with its history.

    Parameters: parallel arrays `ids`, `attempts`, `statuses`, `delays` (seconds until due again), `ats` (instants
    not to be due before, or null), `outcomes`, `errors` (JSON texts or null), `fingerprints`, `uncounted` (1 gives the
    attempt back), `reasons` and `dead_letter_ids` of those that die; at most `_parts.BATCH`; `locks`, the ids and those of
    the roots of continuations; `worker_id`.
    Shape: `(id, status, chain_id, has_waiters)` of each attempt that still was the worker's; for the others nothing is
    written. `has_waiters` is whether its chain has waiters.
    Changes: running -> pending, dead or cancelled; a `job_attempt` row each, a `dead_letter` for each that died. The
    chain ends with a job that does not go back to pending.
    Clock: the database's, at the start of the transaction; delays count from there, and an instant before it means now.
    Locks: the rows and their chains' roots, by id; rows that another transaction holds are skipped, as in `complete`.
    Index: the primary key.
    """

    def value_of(name: str, row: Any, kind: Any = sa.Text()) -> ColumnElement[Any]:
        return element(array(name, kind), position(t.ids("ids"), row.c.id))

    to = value_of("statuses", t.job)
    delay = sa.func.make_interval(0, 0, 0, 0, 0, 0, value_of("delays", t.job, sa.Double()), type_=sa.Interval)
    later = sa.func.greatest(value_of("ats", t.job, TIMESTAMP(timezone=True)), sa.func.now() + delay)
    uncounted = value_of("uncounted", t.job, sa.Integer())
    locked = free(t.job, t.ids("locks"))
    ended = (
        sa.update(t.job)
        .where(fence(t, locked), t.job.c.chain_id == sa.any_(locked))
        .values(
            status=sa.cast(to, t.job.c.status.type),
            scheduled_at=sa.case((to == JobStatus.PENDING.value, later), else_=t.job.c.scheduled_at),
            completed_at=sa.case((to != JobStatus.PENDING.value, sa.func.now())),
            chain_completed_at=sa.case(((to != JobStatus.PENDING.value) & (t.job.c.chain_index == 0), sa.func.now())),
            leased_by=sa.null(),
            leased_until=sa.null(),
            last_error=sa.func.coalesce(sa.cast(value_of("errors", t.job), JSONB), t.job.c.last_error),
            # Without a limit on attempts there is no larger number.
            max_attempts=sa.func.least(t.job.c.max_attempts, LAST_ATTEMPT - uncounted) + uncounted,
            changed_xid=XID,
        )
        .returning(*remembered(t.job), t.job.c.has_waiters)
        .cte("ended")
    )
    over = sa.cast(ended.c.status, sa.Text) != JobStatus.PENDING.value
    roots = end_chains(t.job, ended, over)
    error, fingerprint = sa.cast(value_of("errors", ended), JSONB), value_of("fingerprints", ended)
    worker, outcome = sa.bindparam("worker_id", type_=sa.Text), value_of("outcomes", ended, t.attempt.c.outcome.type)
    history = (
        insert(t.attempt)
        .from_select(
            ["job_id", "attempt", "worker_id", "started_at", "outcome", "error", "error_fingerprint"],
            sa.select(ended.c.id, ended.c.attempt, worker, ended.c.started_at, outcome, error, fingerprint),
        )
        # One written by hand is left as it is, so that it does not fail the others.
        .on_conflict_do_nothing(index_elements=["job_id", "attempt"])
        .cte("history")
    )
    dead_letters = buried(
        t,
        ended,
        reason=value_of("reasons", ended, t.dead_letter.c.reason.type),
        error=error,
        fingerprint=fingerprint,
        dead_letter_id=value_of("dead_letter_ids", ended, t.id_type),
        died=value_of("statuses", ended) == JobStatus.DEAD.value,
    )
    ended_attempts = sa.select(ended.c.id, ended.c.status, ended.c.chain_id, awaited(ended, roots))
    return ended_attempts.add_cte(history, dead_letters)


def end_chains(job: sa.Table, ended: Any, over: ColumnElement[bool]) -> sa.CTE:
    """End the chains of those continuations among the rows of the CTE `ended` that are the last of their chain.

    Obliges: the roots are locked. Its values are arrays made of the CTE, which PostgreSQL computes once: a subquery for
    each row would be computed again where a root was changed meanwhile, which a CTE that writes does not survive.
    """
    last = (ended.c.chain_id != ended.c.id) & over
    chains = sa.func.array(sa.select(ended.c.chain_id).where(last).scalar_subquery(), type_=ARRAY(job.c.id.type))
    outcomes = sa.func.array(sa.select(ended.c.status).where(last).scalar_subquery(), type_=ARRAY(job.c.status.type))
    outcome = Grouping(outcomes)[sa.func.array_position(chains, job.c.id, type_=sa.Integer)]
    return (
        sa.update(job)
        .where(job.c.id == sa.any_(chains))
        .values(chain_completed_at=sa.func.now(), chain_status=outcome)
        .returning(job.c.id, job.c.has_waiters)
        .cte("roots")
    )


def awaited(ended: Any, roots: sa.CTE) -> ColumnElement[bool]:
    """Return whether the chain of a row of `ended` has waiters, by its root's own row."""
    of_root = sa.select(roots.c.has_waiters).where(roots.c.id == ended.c.chain_id).scalar_subquery()
    return sa.func.coalesce(of_root, ended.c.has_waiters, type_=sa.Boolean).label("has_waiters")


def remembered(job: sa.Table) -> list[ColumnElement[Any]]:
    """Return the columns that history and dead letters need of a row just ended."""
    names = ("id", "status", "attempt", "started_at", "chain_id", "queue", "fairness_key", "type_name")
    return [job.c[name] for name in (*names, "input", "input_version")]


def buried(
    t: Tables,
    ended: Any,
    *,
    reason: ColumnElement[Any],
    error: ColumnElement[Any],
    fingerprint: ColumnElement[Any],
    dead_letter_id: ColumnElement[Any],
    died: ColumnElement[bool],
) -> sa.CTE:
    """Return the CTE that writes a dead letter for each row of the CTE `ended` that died.

    An unresolved dead letter that the job already has, because the job was revived by hand, is updated with this death.
    """
    copied = ["chain_id", "queue", "fairness_key", "type_name", "input", "input_version"]
    names = ["id", "job_id", *copied, "reason", "error", "error_fingerprint", "attempts"]
    statement = insert(t.dead_letter)
    return (
        statement.from_select(
            names,
            sa.select(
                *(dead_letter_id, ended.c.id, *(ended.c[name] for name in copied)),
                *(reason, error, fingerprint, ended.c.attempt),
            ).where(died),
        )
        .on_conflict_do_update(
            index_elements=["job_id"],
            index_where=t.dead_letter.c.resolution.is_(None),
            set_={name: statement.excluded[name] for name in names if name not in {"id", "job_id"}}
            | {"died_at": sa.func.now(), "changed_xid": XID},
        )
        .cte("buried")
    )

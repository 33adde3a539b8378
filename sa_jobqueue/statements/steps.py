"""Steps of a job: what later attempts need not repeat, written by the attempt that holds the job only."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, JSONB, aggregate_order_by, insert
from sqlalchemy.sql.dml import ReturningDelete

from sa_jobqueue.statements._parts import XID, Tables, array, fence, relation, statement
from sa_jobqueue.statements.session_names import current_name
from sa_jobqueue.statements.visibility import is_companion
from sa_jobqueue.types import EVENT_STEP, StepKind


@statement
def recorded(t: Tables) -> sa.Select[Any]:
    """Return the steps of a job.

    Parameters: `job_id`. Shape: `(name, key, kind, attempt, output, started_at, completed_at, is_over, has_output,
    event, deadline, child_chain_id)`, in the order of completion; `is_over` is false for a sleep that has not ended, and for
    a wait that goes on; `has_output` is false for a wait that timed out. Clock: the database's.
    Locks: none. Index: `pk_job_step`.
    """
    is_over = t.step.c.completed_at.is_not(None) & (
        (t.step.c.kind != StepKind.SLEEP.value) | (t.step.c.completed_at <= sa.func.now())
    )
    return (
        sa.select(
            *(t.step.c[name] for name in ("name", "key", "kind", "attempt", "output", "started_at", "completed_at")),
            is_over.label("is_over"),
            t.step.c.output.is_not(None).label("has_output"),
            t.step.c.event,
            t.step.c.deadline,
            t.step.c.child_chain_id,
        )
        .where(t.step.c.job_id == t.id("job_id"))
        .order_by(t.step.c.completed_at, t.step.c.name, t.step.c.key)
    )


@statement
def latest(t: Tables) -> sa.Select[Any]:
    """Return the last steps of a job: a wait that goes on first, then by the time of completion, the latest first.

    Parameters: `job_id`, `limit`. Shape: `(Step,)`. Locks: none. Index: `pk_job_step`.
    """
    step: Any = t.model.Step
    return (
        sa.select(step)
        .where(step.job_id == t.id("job_id"))
        .order_by(step.completed_at.desc().nulls_first(), step.name.desc(), step.key.desc())
        .limit(sa.bindparam("limit", type_=sa.Integer))
    )


@statement
def names(t: Tables) -> sa.Select[Any]:
    """Return the names of the steps of jobs. Parameters: `job_ids`. Shape: `(name,)`, each once. Index: `pk_job_step`."""
    job_ids = t.ids("job_ids")
    return sa.select(t.step.c.name).where(t.step.c.job_id == sa.any_(job_ids)).distinct().order_by(t.step.c.name)


@statement
def delete_from(t: Tables) -> sa.Delete:
    """Delete a step of jobs, and those that completed after it. Parameters: `job_ids`, `step_name`.

    Obliges: the jobs are locked, and not running. Index: `pk_job_step`.
    """
    step = t.step
    return sa.delete(step).where(step.c.job_id == sa.any_(t.ids("job_ids")), _ended(t, step) >= _first_end(t, step))


@statement
def copy_before(t: Tables) -> sa.Insert:
    """Copy the steps of a job that completed before one of them to another job.

    Parameters: `job_id`, `copy_id`, `step_name`. Changes: inserts `job_step` rows. Index: `pk_job_step`, the primary key.
    Obliges: the jobs are locked, and not running.
    """
    step = t.step
    columns = {column.name: column for column in step.c} | {"job_id": t.id("copy_id")}
    chosen = sa.select(*columns.values()).where(step.c.job_id == t.id("job_id"), _ended(t, step) < _first_end(t, step))
    return insert(step).from_select(list(columns), chosen, include_defaults=False)


@statement
def lost_children(t: Tables) -> sa.Select[Any]:
    """Name the chains whose results a job read from their rows before a step, and that are deleted.

    Parameters: `job_id`, `step_name`. Shape: `(child_chain_id,)`. Locks: none. Index: `pk_job_step`, the primary key.
    """
    step, root = t.step, t.job.alias("root")
    is_deleted = step.c.child_chain_id.is_not(None) & step.c.completed_at.is_(None) & root.c.id.is_(None)
    children = sa.select(step.c.child_chain_id).outerjoin(root, root.c.id == step.c.child_chain_id)
    return children.where(step.c.job_id == t.id("job_id"), is_deleted, step.c.started_at < _first_end(t, step))


def _ended(t: Tables, step: Any) -> sa.ColumnElement[Any]:
    """Return when a step completed, one of `AttemptContext.all` with the job whose result it is; infinity for never."""
    root = t.job.alias("root")
    child_ended = sa.select(root.c.chain_completed_at).where(root.c.id == step.c.child_chain_id).correlate(step)
    never: sa.ColumnElement[Any] = sa.literal_column("'infinity'::timestamptz")
    return sa.func.coalesce(step.c.completed_at, child_ended.scalar_subquery(), never)


def _first_end(t: Tables, step: Any) -> sa.ScalarSelect[Any]:
    """Return when the first step of the name `step_name` completed, of the same job."""
    first = t.step.alias("first")
    is_first = (first.c.job_id == step.c.job_id) & (first.c.name == sa.bindparam("step_name", type_=sa.Text))
    return sa.select(sa.func.min(_ended(t, first))).where(is_first).correlate(step).scalar_subquery()


@statement
def delete_timed_out(t: Tables) -> sa.Delete:
    """Delete the last step of jobs where it is a wait that timed out. Parameters: `job_ids`.

    Obliges: the jobs are locked, and not running. Index: `pk_job_step`.
    """
    step, later = t.step, t.step.alias("later")
    is_last = ~sa.exists(
        sa.select(later.c.job_id)
        .where(later.c.job_id == step.c.job_id, later.c.completed_at > step.c.completed_at)
        .correlate(step)
    )
    job_ids = t.ids("job_ids")
    timed_out = (step.c.kind == StepKind.WAIT.value) & step.c.completed_at.is_not(None) & step.c.output.is_(None)
    return sa.delete(step).where(step.c.job_id == sa.any_(job_ids), timed_out, is_last)


@statement
def record(t: Tables, kind: StepKind, *, in_session: bool = False) -> sa.Insert:
    """Record a step of the attempt that holds the job: a result, a sleep, or that it waits for an event, or waited.

    With `in_session` it is for the transaction of a handler: `table_oid` is a parameter too, and nothing is recorded where
    the names of the queue's tables belong to others.

    Parameters: `job_id`, `job_attempt`, `worker_id`, the fence; `step_name`, `step_key`; `step_output` (JSON text or null);
    `took`, how long it took, or how long a sleep, a wait or a delay may last; for a wait, `event` and `is_over`;
    for the result of another job, `child_chain_id` and `is_over`.
    Shape: one row `(until, session_name)`: when it completed, or when a wait times out, and in which transaction it ran;
    none for a lost attempt.
    Changes: a `job_step` row; a second try, after an answer was lost, changes the row of the first, as a result does that of
    a retry.
    Clock: the database's. Locks: the job, awaited, until the transaction ends: until then no
    other transaction can rescue, cancel or complete it.
    Obliges: commit only if it returned a row. Index: the primary key.
    """
    took, now = sa.bindparam("took", type_=sa.Interval), sa.func.clock_timestamp()
    times: dict[str, Any] = {"started_at": now - took, "completed_at": now}
    changed, until = ["started_at", "completed_at"], t.step.c.completed_at
    if kind in {StepKind.SLEEP, StepKind.RETRY}:
        times = {"started_at": sa.func.now(), "completed_at": sa.func.now() + took}
    elif kind is StepKind.WAIT:
        times = {
            "started_at": sa.func.now(),
            "completed_at": sa.case((sa.bindparam("is_over", type_=sa.Boolean), now)),
            "event": sa.bindparam("event", type_=sa.Text),
            "deadline": sa.func.now() + took,
        }
        changed, until = ["completed_at", "event"], t.step.c.deadline
    elif kind is StepKind.RUN:
        times = {
            "started_at": now - took,
            "completed_at": sa.case((sa.bindparam("is_over", type_=sa.Boolean), now)),
            "child_chain_id": t.id("child_chain_id"),
        }
        changed = ["completed_at"]
    values = {
        "job_id": t.job.c.id,
        "name": sa.bindparam("step_name", type_=sa.Text),
        "key": sa.bindparam("step_key", type_=sa.Text),
        "kind": sa.cast(kind.value, sa.Text),
        "attempt": t.job.c.attempt,
        "output": sa.cast(sa.bindparam("step_output", type_=sa.Text), JSONB),
        **times,
    }
    attempt = sa.select(*values.values()).where(fence(t, in_session=in_session)).with_for_update(key_share=True)
    if in_session:
        attempt = attempt.where(is_companion(t, "job_step"))
    statement = insert(t.step).from_select(list(values), attempt)
    again: dict[str, Any] = {name: statement.excluded[name] for name in ("kind", "attempt", "output", *changed)}
    if kind is StepKind.WAIT:  # one that began with its job has no deadline before the first attempt
        again["deadline"] = sa.func.coalesce(t.step.c.deadline, statement.excluded.deadline)
    return statement.on_conflict_do_update(index_elements=["job_id", "name", "key"], set_=again).returning(
        until.label("until"), current_name()
    )


@statement
def await_events(t: Tables) -> sa.Insert:
    """Record that new jobs wait for the events that are their inputs, as their first attempts will do.

    Parameters: `ids`. Changes: a `job_step` row each, without a deadline. Clock: the database's. Locks: none but the new
    rows'. Index: the primary keys.
    """
    values: dict[str, Any] = {
        "job_id": t.job.c.id,
        "name": sa.cast(EVENT_STEP, sa.Text),
        "kind": sa.cast(StepKind.WAIT.value, sa.Text),
        "attempt": t.job.c.attempt,
        "event": t.job.c.input.op("#>>")(sa.literal_column("'{}'")),
        "started_at": sa.func.clock_timestamp(),
    }
    is_new = sa.and_(t.job.c.attempt == 0, t.job.c.completed_at.is_(None))
    jobs = sa.select(*values.values()).where(t.job.c.id == sa.any_(t.ids("ids")), is_new)
    return insert(t.step).from_select(list(values), jobs, include_defaults=False).on_conflict_do_nothing()


@statement
def child_results(t: Tables) -> sa.Select[Any]:
    """Return how chains ended, or the status of those that go on. Parameters: `ids`, at most `_parts.BATCH`.

    Shape: `(id, status, output, error)`, unordered. Locks: none. Index: the primary key, `uq_job_chain`.
    The view has its owner's rights, so it shows chains that row-level security hides from the role: left out by the join.
    """
    root = t.job.alias("root")
    return (
        sa.select(t.chain.c.id, t.chain.c.status, t.chain.c.output, t.chain.c.error)
        .join(root, root.c.id == t.chain.c.id)
        .where(t.chain.c.id == sa.any_(t.ids("ids")))
    )


@statement
def open_child(t: Tables) -> sa.Select[Any]:
    """Return the step of one of the jobs whose result a job waits for and that has not ended: the last by id, or any.

    Parameters: `job_id`; `ids`, roots of chains, null for all; `any`: whether it is chosen at random.
    Shape: `(name, key, child_chain_id, started_at)`, one row at most. Locks: none.
    Index: `pk_job_step`, the primary key of the jobs.
    """
    root = t.job.alias("root")
    is_chosen = sa.func.coalesce(t.step.c.child_chain_id == sa.any_(t.ids("ids")), sa.true())
    return (
        sa.select(t.step.c.name, t.step.c.key, t.step.c.child_chain_id, t.step.c.started_at)
        .join(root, root.c.id == t.step.c.child_chain_id)
        .where(
            t.step.c.job_id == t.id("job_id"),
            t.step.c.completed_at.is_(None),
            root.c.chain_completed_at.is_(None),
            is_chosen,
        )
        .order_by(sa.case((sa.bindparam("any", False, type_=sa.Boolean), sa.func.random())), t.step.c.child_chain_id.desc())
        .limit(sa.literal_column("1"))
    )


@statement
def children(t: Tables) -> sa.Select[Any]:
    """Name the chains whose results jobs wait for. Parameters: `job_ids`. Shape: `(child_chain_id,)`, each once.

    Locks: none. Index: `pk_job_step`.
    """
    is_waiting = t.step.c.child_chain_id.is_not(None) & t.step.c.completed_at.is_(None)
    return sa.select(t.step.c.child_chain_id).where(t.step.c.job_id == sa.any_(t.ids("job_ids")), is_waiting).distinct()


@statement
def record_children(t: Tables) -> sa.Insert:
    """Record that the attempt that holds the job waits for the results of other jobs, or how these ended.

    Parameters: the fence, as of `record`; parallel arrays `names`, `keys`, `child_chain_ids`, `outputs` (JSON texts or
    nulls), at most `_parts.BATCH`; `is_over`. Shape: `(name,)` for each; none for a lost attempt.
    Changes: `job_step` rows. Clock: the database's. Locks: the job, awaited, until the transaction ends.
    Obliges: commit only if it returned rows. Index: the primary key.
    """
    attempt = sa.select(t.job.c.id, t.job.c.attempt).where(fence(t)).with_for_update(key_share=True).cte("attempt")
    text, now = sa.Text(), sa.func.clock_timestamp()
    names, keys, outputs = array("names", text), array("keys", text), array("outputs", text)
    child = relation("child", name=names, key=keys, child_chain_id=t.ids("child_chain_ids"), output=outputs)
    values: dict[str, Any] = {
        "job_id": attempt.c.id,
        "name": child.c.name,
        "key": child.c.key,
        "kind": sa.cast(StepKind.RUN.value, sa.Text),
        "attempt": attempt.c.attempt,
        "output": sa.cast(child.c.output, JSONB),
        "child_chain_id": child.c.child_chain_id,
        "started_at": now,
        "completed_at": sa.case((sa.bindparam("is_over", type_=sa.Boolean), now)),
    }
    chosen = sa.select(*values.values()).select_from(attempt.join(child, sa.true()))
    statement = insert(t.step).from_select(list(values), chosen, include_defaults=False)
    again = {name: statement.excluded[name] for name in ("attempt", "output", "completed_at")}
    return statement.on_conflict_do_update(index_elements=["job_id", "name", "key"], set_=again).returning(t.step.c.name)


@statement
def delete_places(t: Tables) -> sa.Delete:
    """Delete steps of a job. Parameters: `job_id`; parallel arrays `names`, `keys`.

    Obliges: the attempt holds the job, which is locked. Index: `pk_job_step`.
    """
    place = relation("place", name=array("names", sa.Text()), key=array("keys", sa.Text()))
    is_chosen = sa.tuple_(t.step.c.name, t.step.c.key).in_(sa.select(place.c.name, place.c.key))
    return sa.delete(t.step).where(t.step.c.job_id == t.id("job_id"), is_chosen)


@statement
def wake_parents(t: Tables) -> sa.Select[Any]:
    """Make the jobs due that wait for the results of chains.

    Parameters: `ids`, of roots. Shape: `(id, queue, fairness_key, type_name, attempt)`, unordered.
    Clock: the database's. Locks: the jobs, until the transaction ends; held ones are skipped.
    Obliges: the roots are locked: no job begins to wait for one meanwhile. Index: `ix_job_step_child`, the primary key.
    """
    waiting = sa.select(t.job.c.id).where(*_waits_for_child(t)).order_by(t.job.c.id)
    waiting_jobs = waiting.with_for_update(key_share=True, skip_locked=True).cte("waiting")
    woken = (
        sa.update(t.job)
        .where(t.job.c.id == sa.any_(sa.func.array(sa.select(waiting_jobs.c.id).scalar_subquery())))
        .values(scheduled_at=sa.func.now(), changed_xid=XID)
        .returning(t.job.c.id, t.job.c.queue, t.job.c.fairness_key, t.job.c.type_name, t.job.c.attempt)
        .cte("woken")
    )
    return sa.select(woken)


@statement
def still_waiting(t: Tables) -> sa.Select[Any]:
    """Return the chains whose results jobs still wait for without being due. Parameters: `ids`. Shape: `(child_chain_id,)`.

    Locks: none. Index: `ix_job_step_child`, the primary key.
    """
    waits = sa.and_(*_waits_for_child(t))
    children = _open_children(t)
    return (
        sa.select(t.step.c.child_chain_id)
        .where(*children, sa.exists(sa.select(t.job.c.id).where(t.job.c.id == t.step.c.job_id, waits).correlate(t.step)))
        .distinct()
    )


def _open_children(t: Tables) -> list[sa.ColumnElement[bool]]:
    return [
        t.step.c.child_chain_id == sa.any_(t.ids("ids")),
        t.step.c.child_chain_id.is_not(None),
        t.step.c.completed_at.is_(None),
    ]


def _waits_for_child(t: Tables) -> list[sa.ColumnElement[bool]]:
    """Return the conditions of a job that waits for the result of one of the chains `ids`."""
    step_jobs = sa.select(t.step.c.job_id).where(*_open_children(t))
    return [
        t.job.c.id == sa.any_(sa.func.array(step_jobs.scalar_subquery())),
        sa.cast(t.job.c.status, sa.Text) == sa.literal_column("'pending'"),
        t.job.c.scheduled_at > sa.func.now(),
    ]


@statement
def ancestor_of_keys(t: Tables) -> sa.Select[Any]:
    """Return a job of one of some ordering keys among a job and the jobs that wait for its result, theirs, and so on.

    Parameters: `job_id`, `ordering_keys`. Shape: `(ordering_key,)`, one row at most. Locks: none.
    Index: `ix_job_step_child`.
    """
    columns = [t.job.c.id, t.job.c.chain_id, t.job.c.ordering_key]
    ancestor = sa.select(*columns).where(t.job.c.id == t.id("job_id")).cte("ancestor", recursive=True)
    parent = (
        sa.select(*columns)
        .join(t.step, t.step.c.job_id == t.job.c.id)
        .where(
            t.step.c.child_chain_id == ancestor.c.chain_id,
            t.step.c.child_chain_id.is_not(None),
            t.step.c.completed_at.is_(None),
        )
    )
    ancestor = ancestor.union(parent)
    keys = sa.any_(array("ordering_keys", sa.Text()))
    return sa.select(ancestor.c.ordering_key).where(ancestor.c.ordering_key == keys).limit(sa.literal_column("1"))


@statement
def lock_event(t: Tables) -> sa.Select[Any]:
    """Try to lock the name of an event against senders, until the transaction ends.

    Parameters: `event`. Shape: `(locked,)`, false while a sender's transaction is open. Locks: an advisory lock, shared;
    senders hold it exclusively.
    """
    return sa.select(sa.func.pg_try_advisory_xact_lock_shared(_event_lock(t)).label("locked"))


def _event_lock(t: Tables) -> sa.ColumnElement[Any]:
    """Return the key of the advisory lock of the event `event`."""
    name = sa.literal(t.layout.channel("event") + ":") + sa.bindparam("event", type_=sa.Text)
    return sa.func.hashtextextended(name, sa.literal_column("0"))


@statement
def shut_out_event(t: Tables) -> sa.Select[Any]:
    """Lock the name of an event, as senders do, against them and attempts that begin to wait. Parameters: `event`.

    Shape: one row, the isolation level of the transaction.
    Locks: an advisory lock, exclusive, awaited, until the transaction ends.
    """
    locked = sa.select(sa.func.pg_advisory_xact_lock(_event_lock(t)).label("locked")).subquery("locked")
    level = sa.func.current_setting(sa.literal_column("'transaction_isolation'"), type_=sa.Text)
    return sa.select(level.label("level")).select_from(locked)


@statement
def sent_events(t: Tables) -> sa.Select[Any]:
    """Return the names of the events that this transaction has sent. Cost: reads all events."""
    return sa.select(t.event.c.name).where(t.event.c.sent_at == sa.func.now()).order_by(t.event.c.name)


@statement
def delete_event(t: Tables) -> ReturningDelete[Any]:
    """Delete an event, expired or not. Parameters: `event`. Shape: `(name,)`, none if there is none.

    Obliges: lock its name before, in the same READ COMMITTED transaction. Index: the primary key.
    """
    return sa.delete(t.event).where(t.event.c.name == sa.bindparam("event", type_=sa.Text)).returning(t.event.c.name)


@statement
def event_sent(t: Tables) -> sa.Select[Any]:
    """Return the event of a name.

    Parameters: `event`; `since`, when the job began to wait, null if it has not. Shape: one row `(now, name, payload)`, the
    last two null if it was not sent, or expired before the job began to wait. Clock: the database's. Locks: none.
    Index: `pk_job_event`.
    """
    now = sa.select(sa.func.now().label("now")).subquery("clock")
    since = sa.bindparam("since", None, type_=sa.DateTime(timezone=True))
    is_sent = (t.event.c.name == sa.bindparam("event", type_=sa.Text)) & (
        (t.event.c.expires_at > now.c.now) | (t.event.c.sent_at >= since)
    )
    return sa.select(now.c.now, t.event.c.name, t.event.c.payload).select_from(now.outerjoin(t.event, is_sent))


@statement
def sent(t: Tables) -> sa.Select[Any]:
    """Return the event of a name that counts. Parameters: `event`. Shape: `(Event,)`. Index: `pk_job_event`."""
    event = t.model.Event
    return sa.select(event).where(event.name == sa.bindparam("event", type_=sa.Text), event.expires_at > sa.func.now())


@statement
def send_event(t: Tables) -> sa.Select[Any]:
    """Send an event: the function `job_send_event`.

    Parameters: `event`, `payload` (JSON text), `keep`. Shape: `(is_first,)`.
    Changes: a `job_event` row; jobs that wait become due, and workers are notified. Locks: the name, exclusively, against
    other senders and attempts that begin to wait; the jobs.
    """
    event, payload = (sa.bindparam(name, type_=sa.Text) for name in ("event", "payload"))
    keep = sa.bindparam("keep", type_=sa.Interval)
    return sa.select(t.function("job_send_event", event, sa.cast(payload, JSONB), keep).label("is_first"))


@statement
def waits(t: Tables) -> sa.Select[Any]:
    """Return the events that jobs wait for.

    Parameters: `after`, the name of an event or empty; `scan_limit`, waits that are read at most; `limit`. Shape: `(event,
    jobs, since, times_out_at, scanned)`, by event, `jobs` 0 if all have ended; the first began to wait at `since`, and the
    first times out at `times_out_at`; `scanned`: the number of all waits that were read, of which the last event may have
    more. Locks: none. Index: `ix_job_step_event`, then the primary key of the jobs.
    """
    scan = (
        sa.select(t.step.c.job_id, t.step.c.event, t.step.c.started_at, t.step.c.deadline)
        .where(t.step.c.event > sa.bindparam("after", type_=sa.Text), t.step.c.completed_at.is_(None))
        .order_by(t.step.c.event)
        .limit(sa.bindparam("scan_limit", type_=sa.Integer))
        .cte("scan")
    )
    goes_on = t.job.c.completed_at.is_(None)
    return (
        sa.select(
            scan.c.event,
            sa.func.count().filter(goes_on).label("jobs"),
            sa.func.min(scan.c.started_at).filter(goes_on).label("since"),
            sa.func.min(scan.c.deadline).filter(goes_on).label("times_out_at"),
            sa.select(sa.func.count()).select_from(scan).scalar_subquery().label("scanned"),
        )
        .select_from(scan.join(t.job, t.job.c.id == scan.c.job_id))
        .group_by(scan.c.event)
        .order_by(scan.c.event)
        .limit(sa.bindparam("limit", type_=sa.Integer))
    )


@statement
def waits_by_step(t: Tables) -> sa.Select[Any]:
    """Count the waits for events by job type, step, and the part of the event's name before a colon.

    Parameters: `scan_limit`, waits that are read at most. Shape: `(type_name, step, prefix, jobs, events, event, since,
    times_out_at)`, the most jobs first; `event` is the first by name. Locks: none.
    Index: `ix_job_step_event`, then the primary key of the jobs.
    """
    scan = (
        sa.select(t.step.c.job_id, t.step.c.name, t.step.c.event, t.step.c.started_at, t.step.c.deadline)
        .where(t.step.c.event.is_not(None), t.step.c.completed_at.is_(None))
        .order_by(t.step.c.event)
        .limit(sa.bindparam("scan_limit", type_=sa.Integer))
        .subquery("scan")
    )
    prefix = sa.func.split_part(scan.c.event, sa.literal_column("':'"), sa.literal_column("1")).label("prefix")
    count = sa.func.count().label("jobs")
    return (
        sa.select(
            t.job.c.type_name,
            scan.c.name.label("step"),
            prefix,
            count,
            sa.func.count(scan.c.event.distinct()).label("events"),
            sa.func.min(scan.c.event).label("event"),
            sa.func.min(scan.c.started_at).label("since"),
            sa.func.min(scan.c.deadline).label("times_out_at"),
        )
        .select_from(scan.join(t.job, t.job.c.id == scan.c.job_id))
        .where(t.job.c.completed_at.is_(None))
        .group_by(t.job.c.type_name, scan.c.name, prefix)
        .order_by(count.desc(), prefix)
    )


@statement
def awaited(t: Tables) -> sa.Select[Any]:
    """Count the jobs that wait for events and those events, and return the job that has waited longest.

    Parameters: `limit`: it counts no further. Shape: one row `(jobs, events, job_id, since)`. Locks: none.
    Index: `ix_job_step_event`, then the primary key of the jobs.
    """
    waits = (
        sa.select(t.step.c.job_id, t.step.c.event, t.step.c.started_at)
        .join_from(t.step, t.job, t.job.c.id == t.step.c.job_id)
        .where(t.step.c.event.is_not(None), t.step.c.completed_at.is_(None), t.job.c.completed_at.is_(None))
        .limit(sa.bindparam("limit", type_=sa.Integer))
        .subquery("found")
    )
    ids = sa.func.array_agg(aggregate_order_by(waits.c.job_id, waits.c.started_at), type_=ARRAY(waits.c.job_id.type))
    return sa.select(
        sa.func.count().label("jobs"),
        sa.func.count(waits.c.event.distinct()).label("events"),
        ids[1].label("job_id"),
        sa.func.min(waits.c.started_at).label("since"),
    )


@statement
def sent_lately(t: Tables) -> sa.Select[Any]:
    """Return the names of the events that expire last. Parameters: `limit`, `since`: when the first was sent.

    Shape: `(name,)`. Locks: none. Index: `ix_job_event_expires`, from its end.
    """
    latest = (
        sa.select(t.event.c.name, t.event.c.sent_at)
        .order_by(t.event.c.expires_at.desc())
        .limit(sa.bindparam("limit", type_=sa.Integer))
        .subquery("latest")
    )
    return sa.select(latest.c.name).where(latest.c.sent_at >= sa.bindparam("since", type_=sa.DateTime(timezone=True)))


@statement
def waiting_jobs(t: Tables) -> sa.Select[Any]:
    """Return the jobs that wait for an event. Parameters: `event`, `limit`. Shape: `(Job, Step)`, in no order.

    Locks: none. Index: `ix_job_step_event`, then the primary key of the jobs.
    """
    job, step = t.model, t.model.Step
    return (
        sa.select(job, step)
        .join(step, step.job_id == job.id)
        .where(
            step.event == sa.bindparam("event", type_=sa.Text),
            step.event.is_not(None),
            step.completed_at.is_(None),
            job.completed_at.is_(None),
        )
        .limit(sa.bindparam("limit", type_=sa.Integer))
    )


def _is_awaited(t: Tables, event: sa.Table) -> sa.ColumnElement[bool]:
    """Return whether a job began to wait for an event before it was sent and has not got it yet: the event is the job's."""
    step, job = t.step.alias("waiting"), t.job.alias("waiter")
    return sa.exists(
        sa.select(step.c.job_id)
        .join(job, job.c.id == step.c.job_id)
        .where(
            step.c.event == event.c.name,
            step.c.event.is_not(None),
            step.c.completed_at.is_(None),
            step.c.started_at <= event.c.sent_at,
            job.c.completed_at.is_(None),
        )
        .correlate(event)
    )


@statement
def expired_events(t: Tables) -> sa.Select[Any]:
    """Read expired events for which no job waits since before they were sent, the oldest first.

    Parameters: `limit`; `excluded`, names that are left out. Shape: `(name,)`.
    Clock: the database's. Locks: none. Index: `ix_job_event_expires`, then `ix_job_step_event`.
    """
    event = t.event
    excluded = array("excluded", sa.Text())
    return (
        sa.select(event.c.name)
        .where(event.c.expires_at <= sa.func.now(), event.c.name != sa.all_(excluded), ~_is_awaited(t, event))
        .order_by(event.c.expires_at)
        .limit(sa.bindparam("limit", type_=sa.Integer))
    )


@statement
def delete_events(t: Tables) -> ReturningDelete[Any]:
    """Delete expired events. Parameters: `names`. Shape: `(name,)`, unordered. Clock: the database's.

    Locks: the rows, until the transaction ends; held ones are skipped. Index: the primary key.
    """
    event = t.event
    expired = sa.select(event.c.name).where(
        event.c.name == sa.any_(array("names", sa.Text())), event.c.expires_at <= sa.func.now(), ~_is_awaited(t, event)
    )
    return sa.delete(event).where(event.c.name.in_(expired.with_for_update(skip_locked=True))).returning(event.c.name)

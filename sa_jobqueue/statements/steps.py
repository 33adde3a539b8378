"""Steps of a job: what later attempts need not repeat, written by the attempt that holds the job only."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Insert, Integer, Interval, Select, Text, bindparam, cast, func, select
from sqlalchemy.dialects.postgresql import JSONB, insert

from sa_jobqueue.models import JobMixin
from sa_jobqueue.models.base import id_parameter
from sa_jobqueue.statements._parts import is_running, once_a_model, table
from sa_jobqueue.statements.session_names import current_name
from sa_jobqueue.types import StepKind


@once_a_model
def recorded(model: type[JobMixin[Any]]) -> Select[Any]:
    """Return the steps of a job.

    Parameters: `job_id`. Shape: `(name, key, kind, attempt, output, started_at, completed_at, is_over, event, deadline)`,
    in the order of completion; `is_over` is false for a sleep that has not ended and a wait. Clock: the database's.
    Locks: none. Index: `pk_job_step`.
    """
    step = table(model.Step)
    is_over = step.c.completed_at.is_not(None) & (
        (step.c.kind != StepKind.SLEEP.value) | (step.c.completed_at <= func.now())
    )
    return (
        select(
            *(step.c[name] for name in ("name", "key", "kind", "attempt", "output", "started_at", "completed_at")),
            is_over.label("is_over"),
            step.c.event,
            step.c.deadline,
        )
        .where(step.c.job_id == bindparam("job_id", type_=id_parameter(model.__jobqueue__)))
        .order_by(step.c.completed_at, step.c.name, step.c.key)
    )


@once_a_model
def record(model: type[JobMixin[Any]], kind: StepKind) -> Insert:
    """Record a step of the attempt that holds the job.

    Parameters: `job_id`, `job_attempt`, `worker_id`, the fence; `step_name`, `step_key`; `step_output` (JSON text or null);
    `took`, how long it took; for a sleep, how long it is.
    Shape: one row `(completed_at, session_name)`, the last telling in which transaction it ran; none for a lost attempt.
    Changes: a `job_step` row. Clock: the database's. Locks: the job, awaited, until the transaction ends: until then no
    other transaction can rescue, cancel or complete it.
    Obliges: commit only if it returned a row. Index: the primary key.
    """
    job, step = table(model), table(model.Step)
    took = bindparam("took", type_=Interval)
    is_sleep = kind is StepKind.SLEEP
    held = (
        select(
            job.c.id,
            bindparam("step_name", type_=Text),
            bindparam("step_key", type_=Text),
            cast(kind.value, Text),
            job.c.attempt,
            cast(bindparam("step_output", type_=Text), JSONB),
            func.now() if is_sleep else func.clock_timestamp() - took,
            func.now() + took if is_sleep else func.clock_timestamp(),
        )
        .where(
            job.c.id == bindparam("job_id", type_=id_parameter(model.__jobqueue__)),
            job.c.attempt == bindparam("job_attempt", type_=Integer),
            job.c.leased_by == bindparam("worker_id", type_=Text),
            is_running(job),
        )
        .with_for_update(key_share=True)
    )
    columns = ["job_id", "name", "key", "kind", "attempt", "output", "started_at", "completed_at"]
    return insert(step).from_select(columns, held).returning(step.c.completed_at, current_name())

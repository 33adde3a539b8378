"""Errors of handlers in Sentry with the job they belong to, a transaction per attempt, and check-ins of schedules.

    sentry_sdk.init(...)
    report_jobs(jobs)

A registry that is included in another one needs its own call.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import sentry_sdk
from sentry_sdk.crons import monitor
from sentry_sdk.integrations.logging import ignore_logger

from sa_jobqueue.context import AttemptContext
from sa_jobqueue.errors import AttemptSignal, Cancel, Discard, Retry, Snooze
from sa_jobqueue.operations.schedules import id_of, time_in
from sa_jobqueue.registry import JobQueue, Proceed, Schedule
from sa_jobqueue.types import CancelReason
from sa_jobqueue.worker.logs import ATTEMPTS, LOGGER_NAME

__all__ = ["report_jobs"]


def report_jobs(jobs: JobQueue[Any], *, check_ins: bool = True) -> None:
    """Report every attempt of the handlers of `jobs` to Sentry.

    - An error of a handler, `Retry`, `Discard` or a timeout is captured with the context `job` (id, type, queue, attempt
      and the like) and the tags `job.type` and `job.queue`; `Snooze`, `Cancel` and a shutdown are not.
    - An attempt is a transaction named after its job type, with the operation `queue.process`.
    - `check_ins`: an attempt of a scheduled job is a check-in of the monitor with the schedule's name, which is created
      from its declaration.

    The payload is not sent, but Sentry sends local variables of stack frames, unless you set its
    `include_local_variables=False`.
    """
    ignore_logger(LOGGER_NAME)
    ignore_logger(f"{LOGGER_NAME}.{ATTEMPTS}")

    @jobs.middleware
    async def report_attempt(attempt: AttemptContext, proceed: Proceed) -> None:
        job, ended = attempt.job, None
        schedule = _schedule_of(attempt, jobs) if check_ins else None
        with sentry_sdk.isolation_scope() as scope, _check_in(schedule):
            scope.set_tag("job.type", job.type_name)
            scope.set_tag("job.queue", job.queue)
            scope.set_context("job", _described(attempt))
            with sentry_sdk.start_transaction(op="queue.process", name=job.type_name, source="task") as transaction:
                try:
                    await proceed()
                except BaseException as error:
                    ended = error
                failed = _is_failure(ended, attempt)
                if failed:
                    sentry_sdk.capture_exception(ended)
                transaction.set_status("internal_error" if failed else "ok")
            # Raised here: a transaction counts every exception that leaves it as an error, and so does a monitor.
            if ended is not None and not isinstance(ended, (Snooze, Cancel)):
                raise ended
        if ended is not None:
            raise ended


def _described(attempt: AttemptContext) -> dict[str, Any]:
    job = attempt.job
    return {
        "id": str(job.id),
        "type": job.type_name,
        "queue": job.queue,
        "fairness_key": job.fairness_key,
        "attempt": job.attempt,
        "max_attempts": job.max_attempts,
        "chain_id": str(job.chain_id),
        "scheduled_at": job.scheduled_at.isoformat(),
        "worker_id": attempt.worker_id,
    }


def _is_failure(ended: BaseException | None, attempt: AttemptContext) -> bool:
    """Return whether an attempt failed; it did not if it was stopped or asked for a pause."""
    if isinstance(ended, AttemptSignal):
        return isinstance(ended, (Retry, Discard))
    return isinstance(ended, Exception) or (ended is not None and attempt.cancel_reason is CancelReason.TIMED_OUT)


def _schedule_of(attempt: AttemptContext, jobs: JobQueue[Any]) -> Schedule | None:
    """Return the declared schedule that enqueued a job; None for any other job. The id of the job tells."""
    fire_time = time_in(attempt.job.id)
    for schedule in jobs.schedules:
        if fire_time and id_of(schedule.name, fire_time, jobs.model) == attempt.job.id:
            return schedule
    return None


def _check_in(schedule: Schedule | None) -> AbstractContextManager[object]:
    """Return what reports a run to the monitor of a schedule: failed if it is left by an exception."""
    if schedule is None:
        return nullcontext()
    config: Any = {"schedule": {"type": "crontab", "value": schedule.cron}, "timezone": schedule.time_zone}
    return monitor(schedule.name, monitor_config=config)

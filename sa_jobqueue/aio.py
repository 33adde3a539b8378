"""The operations for an `AsyncSession`: the same names, arguments, results and errors, to be awaited.

Each runs the synchronous function on the session's synchronous side, in the caller's transaction; nothing is written
twice. `after_commit`, which does no I/O, is the same function for both. `wait_chain` and
`wait_chains` take an `AsyncEngine`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, cast

from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session
from typing_extensions import TypeVar

from sa_jobqueue import operations
from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.models import Job
from sa_jobqueue.waiting import aio as waiting

P = ParamSpec("P")
# The default is that of `model: type[JobT]`, which a type checker would lose where a job itself is returned.
R = TypeVar("R", default=Job)


def _awaited(
    operation: Callable[Concatenate[Session, P], R],
) -> Callable[Concatenate[AsyncSession, P], Coroutine[Any, Any, R]]:
    """Return an operation for an `AsyncSession`, with its types, overloads, signature and docstring."""

    @functools.wraps(operation)
    async def wrapper(session: AsyncSession, /, *args: P.args, **kwargs: P.kwargs) -> R:
        async_session: object = session
        if isinstance(async_session, Session | scoped_session):
            name = operation.__name__
            raise InvalidOptionError("session", f"is a Session: call sa_jobqueue.operations.{name}(...), without await")
        if isinstance(async_session, async_scoped_session):
            async_session = async_session()
        return await cast("AsyncSession", async_session).run_sync(operation, *args, **kwargs)

    signature = inspect.signature(operation)
    first, *parameters = signature.parameters.values()
    session_parameter = first.replace(annotation=AsyncSession, kind=inspect.Parameter.POSITIONAL_ONLY)
    wrapper.__signature__ = signature.replace(parameters=[session_parameter, *parameters])  # type: ignore[attr-defined]
    wrapper.__annotations__ = operation.__annotations__ | {"session": AsyncSession}
    wrapper.__module__ = __name__
    return wrapper


after_commit = operations.after_commit
cancel_chains = _awaited(operations.cancel_chains)
cancel_jobs = _awaited(operations.cancel_jobs)
check_schema = _awaited(operations.check_schema)
complete_job = _awaited(operations.complete_job)
delete_chains = _awaited(operations.delete_chains)
delete_job_types = _awaited(operations.delete_job_types)
delete_queues = _awaited(operations.delete_queues)
delete_schedules = _awaited(operations.delete_schedules)
dismiss_dead_letters = _awaited(operations.dismiss_dead_letters)
drain_workers = _awaited(operations.drain_workers)
enqueue = _awaited(operations.enqueue)
enqueue_many = _awaited(operations.enqueue_many)
explain_job = _awaited(operations.explain_job)
explain_schedule = _awaited(operations.explain_schedule)
fire_schedules = _awaited(operations.fire_schedules)
get_chain = _awaited(operations.get_chain)
get_job = _awaited(operations.get_job)
get_job_type = _awaited(operations.get_job_type)
get_progress = _awaited(operations.get_progress)
get_queue = _awaited(operations.get_queue)
get_schedule = _awaited(operations.get_schedule)
group_dead_letters = _awaited(operations.group_dead_letters)
list_attempts = _awaited(operations.list_attempts)
list_audit = _awaited(operations.list_audit)
list_awaited_events = _awaited(operations.list_awaited_events)
list_blocked_jobs = _awaited(operations.list_blocked_jobs)
list_blockers = _awaited(operations.list_blockers)
list_chain_jobs = _awaited(operations.list_chain_jobs)
list_chains = _awaited(operations.list_chains)
list_dead_letters = _awaited(operations.list_dead_letters)
list_job_types = _awaited(operations.list_job_types)
list_jobs = _awaited(operations.list_jobs)
list_queues = _awaited(operations.list_queues)
list_schedules = _awaited(operations.list_schedules)
list_steps = _awaited(operations.list_steps)
list_workers = _awaited(operations.list_workers)
lock_chain = _awaited(operations.lock_chain)
pause_job_types = _awaited(operations.pause_job_types)
pause_queues = _awaited(operations.pause_queues)
pause_schedules = _awaited(operations.pause_schedules)
prune = _awaited(operations.prune)
redrive_dead_letters = _awaited(operations.redrive_dead_letters)
rerun_job = _awaited(operations.rerun_job)
reschedule_jobs = _awaited(operations.reschedule_jobs)
resize_workers = _awaited(operations.resize_workers)
resume_job_types = _awaited(operations.resume_job_types)
resume_queues = _awaited(operations.resume_queues)
resume_schedules = _awaited(operations.resume_schedules)
run_schedule = _awaited(operations.run_schedule)
send_event = _awaited(operations.send_event)
delete_event = _awaited(operations.delete_event)
set_priority = _awaited(operations.set_priority)
sync_queues = _awaited(operations.sync_queues)
sync_schedules = _awaited(operations.sync_schedules)
trigger_jobs = _awaited(operations.trigger_jobs)
record_job_types = _awaited(operations.record_job_types)
upsert_job_type = _awaited(operations.upsert_job_type)
upsert_queue = _awaited(operations.upsert_queue)
upsert_schedule = _awaited(operations.upsert_schedule)
wait_chain = waiting.wait_chain
wait_chains = waiting.wait_chains

__all__ = [name for name in (*operations.__all__, "wait_chain", "wait_chains") if name in globals()]

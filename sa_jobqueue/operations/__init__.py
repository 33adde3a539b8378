"""Operations on a queue. Their statements run on the caller's `Session`, in its transaction, and are never committed here.

Every operation's first argument is the session; `sa_jobqueue.aio` repeats each for an `AsyncSession`; `after_commit`,
which does no I/O, takes both. Each names the rows it locks and the errors it raises; after an error, roll back the
transaction, unless the error states that nothing was written.
"""

import functools
import inspect
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from sqlalchemy.exc import SQLAlchemyError, UnboundExecutionError
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

from sa_jobqueue.errors import InvalidOptionError, NotFoundError, require_postgresql
from sa_jobqueue.models import Job as _Job
from sa_jobqueue.models import JobClass
from sa_jobqueue.operations.audit import AuditFilter, list_audit
from sa_jobqueue.operations.audit import check_by as _check_by
from sa_jobqueue.operations.bulk import copy_payloads as _copy_payloads
from sa_jobqueue.operations.chains import (
    ChainFilter,
    cancel_chains,
    delete_chains,
    get_chain,
    list_blocked_jobs,
    list_blockers,
    list_chain_jobs,
    list_chains,
)
from sa_jobqueue.operations.completions import complete_job, lock_chain
from sa_jobqueue.operations.dead_letters import (
    DeadLetterFilter,
    DeadLetterGroup,
    dismiss_dead_letters,
    group_dead_letters,
    list_dead_letters,
    redrive_dead_letters,
)
from sa_jobqueue.operations.deduplication import Deduplicate, enqueue, enqueue_many
from sa_jobqueue.operations.events import AwaitedEvent, delete_event, list_awaited_events, send_event
from sa_jobqueue.operations.explaining import Cause, Explanation, explain_job
from sa_jobqueue.operations.explaining_schedules import ScheduleCause, ScheduleExplanation, explain_schedule
from sa_jobqueue.operations.hooks import after_commit
from sa_jobqueue.operations.jobs import (
    JobFilter,
    cancel_jobs,
    get_job,
    get_progress,
    list_attempts,
    list_jobs,
    reschedule_jobs,
    set_priority,
    trigger_jobs,
)
from sa_jobqueue.operations.pages import BulkResult, Page
from sa_jobqueue.operations.pruning import PruneCursor, Pruned, prune
from sa_jobqueue.operations.queues import (
    QueueStatus,
    SyncedQueues,
    TypeStatus,
    delete_job_types,
    delete_queues,
    get_job_type,
    get_queue,
    list_job_types,
    list_queues,
    pause_job_types,
    pause_queues,
    record_job_types,
    resume_job_types,
    resume_queues,
    sync_queues,
    upsert_job_type,
    upsert_queue,
)
from sa_jobqueue.operations.references import load_one as _load_ref
from sa_jobqueue.operations.reruns import rerun_job
from sa_jobqueue.operations.row_security import hidden_rows as _hidden_rows
from sa_jobqueue.operations.row_security import in_words as _in_words
from sa_jobqueue.operations.schedules import (
    ScheduleStatus,
    SyncedSchedules,
    delete_schedules,
    fire_schedules,
    get_schedule,
    list_schedules,
    pause_schedules,
    resume_schedules,
    run_schedule,
    sync_schedules,
    upsert_schedule,
)
from sa_jobqueue.operations.schema import check_schema
from sa_jobqueue.operations.steps import list_steps
from sa_jobqueue.operations.transactions import on_queue
from sa_jobqueue.operations.workers import WorkerFilter, WorkerStatus, drain_workers, list_workers, resize_workers
from sa_jobqueue.operations.writer import by_session as _by_session
from sa_jobqueue.operations.writer import listen as _listen
from sa_jobqueue.operations.writer import write_one as _write_one
from sa_jobqueue.payloads.references import Ref as _Ref
from sa_jobqueue.registry.handlers import Handler

__all__ = [
    "AuditFilter",
    "AwaitedEvent",
    "BulkResult",
    "Cause",
    "ChainFilter",
    "DeadLetterFilter",
    "DeadLetterGroup",
    "Deduplicate",
    "Explanation",
    "JobFilter",
    "Page",
    "PruneCursor",
    "Pruned",
    "QueueStatus",
    "ScheduleCause",
    "ScheduleExplanation",
    "ScheduleStatus",
    "SyncedQueues",
    "SyncedSchedules",
    "TypeStatus",
    "WorkerFilter",
    "WorkerStatus",
    "after_commit",
    "cancel_chains",
    "cancel_jobs",
    "check_schema",
    "complete_job",
    "delete_chains",
    "delete_event",
    "delete_job_types",
    "delete_queues",
    "delete_schedules",
    "dismiss_dead_letters",
    "drain_workers",
    "enqueue",
    "enqueue_many",
    "explain_job",
    "explain_schedule",
    "fire_schedules",
    "get_chain",
    "get_job",
    "get_job_type",
    "get_progress",
    "get_queue",
    "get_schedule",
    "group_dead_letters",
    "list_attempts",
    "list_audit",
    "list_awaited_events",
    "list_blocked_jobs",
    "list_blockers",
    "list_chain_jobs",
    "list_chains",
    "list_dead_letters",
    "list_job_types",
    "list_jobs",
    "list_queues",
    "list_schedules",
    "list_steps",
    "list_workers",
    "lock_chain",
    "pause_job_types",
    "pause_queues",
    "pause_schedules",
    "prune",
    "record_job_types",
    "redrive_dead_letters",
    "rerun_job",
    "reschedule_jobs",
    "resize_workers",
    "resume_job_types",
    "resume_queues",
    "resume_schedules",
    "run_schedule",
    "send_event",
    "set_priority",
    "sync_queues",
    "sync_schedules",
    "trigger_jobs",
    "upsert_job_type",
    "upsert_queue",
    "upsert_schedule",
]

_listen()
Handler._write = staticmethod(functools.partial(_by_session, _write_one))
Handler._copy = staticmethod(functools.partial(_by_session, _copy_payloads))
_Ref._load = staticmethod(functools.partial(_by_session, _load_ref))


def _hiding_of(error: NotFoundError, session: Session, model: JobClass) -> str:
    """Return the sentence of the table that has rows of this kind, if row-level security may hide them."""
    noun = {"chain": "job"}.get(error.noun, error.noun.replace(" ", "_"))
    return _in_words([rows for rows in _hidden_rows(session, commands=["SELECT"], model=model) if rows.noun == noun])


def _for_sessions(operation: Callable[..., Any]) -> Callable[..., Any]:
    """Give an operation the session of a `scoped_session`; check `by`, and refuse sessions and databases it cannot use.

    Its statements go to the bind of the queue's class (`on_queue`). An `AsyncSession` would fail much later, at the
    first result that was not awaited. Another database fails by its first statement, so only errors are looked at.
    """

    default = getattr(inspect.signature(operation).parameters.get("model"), "default", None)

    def model_of(kwargs: dict[str, Any]) -> Any:
        """Return the class of the queue that a call is about; None if the operation finds out by its jobs."""
        handler = kwargs.get("handler")
        return handler.model if isinstance(handler, Handler) else kwargs.get("model", default)

    @functools.wraps(operation)
    def call(session: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(session, AsyncSession | async_scoped_session):
            name = operation.__name__
            raise InvalidOptionError("session", f"is an AsyncSession: await sa_jobqueue.aio.{name}(...)")
        _check_by(kwargs.get("by"))
        plain_session = session() if isinstance(session, scoped_session) else session
        try:
            model = model_of(kwargs)
            if model is None or not isinstance(plain_session, Session):
                return operation(plain_session, *args, **kwargs)
            with on_queue(plain_session, model):
                return operation(plain_session, *args, **kwargs)
        except NotFoundError as error:
            if isinstance(plain_session, Session):
                with suppress(SQLAlchemyError):
                    error.add_reason(_hiding_of(error, plain_session, model or _Job))
            raise
        except Exception:
            with suppress(UnboundExecutionError, AttributeError):
                require_postgresql(plain_session.get_bind().dialect.name)
            raise

    return call


for _name in __all__:
    # `after_commit`, which does no I/O, takes both.
    if inspect.isfunction(_operation := globals()[_name]) and _name != "after_commit":
        globals()[_name] = _for_sessions(_operation)

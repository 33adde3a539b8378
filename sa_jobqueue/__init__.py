"""Your application's PostgreSQL as its job queue.

    from sa_jobqueue import Job, JobQueue

    jobs = JobQueue()

    @jobs.handler("send_receipt")
    def send_receipt(order: OrderPaid, session: Session) -> None: ...

    with Session(engine) as session, session.begin():
        session.add(send_receipt.job(OrderPaid(order_id=7)))

A job is an ORM object: it exists if and only if the caller's transaction commits. `Worker` runs jobs; a handler's writes
and its completion are one commit. A job may be run more than once, its committed effects happen once.

Names that fewer applications need are in other modules:

- `sa_jobqueue.operations`: what applications and operators call on a `Session`; `sa_jobqueue.aio`: the same for an
  `AsyncSession`, with the same names, to be awaited.
- `sa_jobqueue.settings`: settings of queues, job types and retention; `sa_jobqueue.events`: what workers report to
  observers; `sa_jobqueue.errors`: exceptions.
- `sa_jobqueue.registry`: types for batches, mapped objects, selectors and middleware; `sa_jobqueue.types`: states, reasons
  and results.
"""

from importlib import import_module
from typing import NoReturn

from sa_jobqueue.context import AttemptContext, Blockers, ChildJob, Continuation, EventWait, Timer
from sa_jobqueue.errors import Cancel, Discard, JobQueueError, Retry, Snooze
from sa_jobqueue.models import Job, JobMixin, sequence
from sa_jobqueue.operations import Deduplicate, cancel_jobs, enqueue, enqueue_many, get_chain, get_job, list_jobs
from sa_jobqueue.policies.retry import Backoff
from sa_jobqueue.registry import JobQueue, Schedule
from sa_jobqueue.types import Enqueued, JobStatus
from sa_jobqueue.version import __version__
from sa_jobqueue.waiting import wait_chain, wait_chains
from sa_jobqueue.worker import Worker, WorkerOptions

_MODULES = ("operations", "settings", "events", "errors", "registry", "types")
"""Where the names are that fewer applications need, in the order in which they are looked for."""


def __getattr__(name: str) -> NoReturn:
    """Name the module of a public name that is not here. Raises: ImportError; AttributeError for an unknown name."""
    for module_name in _MODULES if not name.startswith("_") and name not in _MODULES else ():
        module = import_module(f"{__name__}.{module_name}")
        defined = getattr(vars(module).get(name), "__module__", "") == module.__name__
        if defined or name in getattr(module, "__all__", ()):
            raise ImportError(f"{name!r} is in another module: from {module.__name__} import {name}", name=__name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "AttemptContext",
    "Backoff",
    "Blockers",
    "Cancel",
    "ChildJob",
    "Continuation",
    "Deduplicate",
    "Discard",
    "Enqueued",
    "EventWait",
    "Job",
    "JobMixin",
    "JobQueue",
    "JobQueueError",
    "JobStatus",
    "Retry",
    "Schedule",
    "Snooze",
    "Timer",
    "Worker",
    "WorkerOptions",
    "__version__",
    "cancel_jobs",
    "enqueue",
    "enqueue_many",
    "get_chain",
    "get_job",
    "list_jobs",
    "sequence",
    "wait_chain",
    "wait_chains",
]

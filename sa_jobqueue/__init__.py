"""Your application's PostgreSQL as its job queue.

    from sa_jobqueue import Job, JobQueue

    jobs = JobQueue()

    @jobs.handler("send_receipt")
    def send_receipt(order: OrderPaid, session: Session) -> None: ...

    with Session(engine) as session, session.begin():
        session.add(send_receipt.job(OrderPaid(order_id=7)))

A job is an ORM object: it exists if and only if the caller's transaction commits. `Worker` runs jobs; a handler's writes
and its completion are one commit. A job may be run more than once, its committed effects happen once.
"""

from sa_jobqueue.context import AttemptContext, BlockerOutcome, Blockers, ClaimedJob, Continuation, current_attempt
from sa_jobqueue.errors import (
    Cancel,
    ChainFailedError,
    ChainNotFoundError,
    ChainTimeoutError,
    Discard,
    JobQueueError,
    Retry,
    Snooze,
)
from sa_jobqueue.handlers import Handler, JobQueue
from sa_jobqueue.middleware import Middleware
from sa_jobqueue.models import Job, JobMixin, WaitFor
from sa_jobqueue.operations import (
    Cause,
    ChainFilter,
    DeadLetterFilter,
    Deduplicate,
    Explanation,
    JobFilter,
    Page,
    Pruned,
    PrunePlace,
    WorkerFilter,
    WorkerStatus,
    after_commit,
    cancel_chains,
    cancel_jobs,
    complete_job,
    delete_chains,
    dismiss_dead_letters,
    drain_workers,
    enqueue,
    enqueue_many,
    enqueue_unique,
    explain_job,
    get_chain,
    get_job,
    group_dead_letters,
    list_attempts,
    list_blocked_jobs,
    list_blockers,
    list_chain_jobs,
    list_chains,
    list_dead_letters,
    list_jobs,
    list_workers,
    lock_chain,
    prune,
    redrive_dead_letters,
    reschedule_jobs,
    trigger_jobs,
)
from sa_jobqueue.retention import FOREVER, Retention, RetentionRules
from sa_jobqueue.retry import Backoff, RetryPolicy
from sa_jobqueue.types import AttemptOutcome, ChainResult, DeadReason, JobId, JobStatus, Resolution
from sa_jobqueue.version import __version__
from sa_jobqueue.waiting import await_chain, wait_chain
from sa_jobqueue.worker import Worker, WorkerOptions

__all__ = [
    "AttemptContext",
    "AttemptOutcome",
    "Backoff",
    "BlockerOutcome",
    "Blockers",
    "Cancel",
    "Cause",
    "ChainFailedError",
    "ChainFilter",
    "ChainNotFoundError",
    "ChainResult",
    "ChainTimeoutError",
    "ClaimedJob",
    "Continuation",
    "DeadLetterFilter",
    "DeadReason",
    "Deduplicate",
    "Discard",
    "Explanation",
    "FOREVER",
    "Handler",
    "Job",
    "JobFilter",
    "JobId",
    "JobMixin",
    "JobQueue",
    "JobQueueError",
    "JobStatus",
    "Middleware",
    "Page",
    "PrunePlace",
    "Pruned",
    "Resolution",
    "Retention",
    "RetentionRules",
    "Retry",
    "RetryPolicy",
    "Snooze",
    "WaitFor",
    "Worker",
    "WorkerFilter",
    "WorkerOptions",
    "WorkerStatus",
    "__version__",
    "after_commit",
    "await_chain",
    "cancel_chains",
    "cancel_jobs",
    "complete_job",
    "current_attempt",
    "delete_chains",
    "dismiss_dead_letters",
    "drain_workers",
    "enqueue",
    "enqueue_many",
    "enqueue_unique",
    "explain_job",
    "get_chain",
    "get_job",
    "group_dead_letters",
    "list_attempts",
    "list_blocked_jobs",
    "list_blockers",
    "list_chain_jobs",
    "list_chains",
    "list_dead_letters",
    "list_jobs",
    "list_workers",
    "lock_chain",
    "prune",
    "redrive_dead_letters",
    "reschedule_jobs",
    "trigger_jobs",
    "wait_chain",
]

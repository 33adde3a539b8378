"""The operations for an `AsyncSession`, one line each: the same function runs on the session's synchronous face."""

from sa_jobqueue import operations
from sa_jobqueue.aio.chains import (
    cancel_chains,
    delete_chains,
    get_chain,
    get_progress,
    list_blocked_jobs,
    list_blockers,
    list_chain_jobs,
    list_chains,
    lock_chain,
)
from sa_jobqueue.aio.control import (
    list_job_types,
    list_queues,
    pause_job_types,
    pause_queues,
    put_job_type,
    put_queue,
    resize_workers,
    resume_job_types,
    resume_queues,
    sync_queues,
)
from sa_jobqueue.aio.dead_letters import dismiss_dead_letters, group_dead_letters, list_dead_letters, redrive_dead_letters
from sa_jobqueue.aio.enqueueing import enqueue, enqueue_many, enqueue_many_unique, enqueue_payloads, enqueue_unique
from sa_jobqueue.aio.jobs import (
    cancel_jobs,
    complete_job,
    explain_job,
    get_job,
    list_attempts,
    list_jobs,
    reschedule_jobs,
    trigger_jobs,
)
from sa_jobqueue.aio.schedules import (
    delete_schedules,
    fire_schedules,
    list_schedules,
    pause_schedules,
    put_schedule,
    resume_schedules,
    run_schedule,
    sync_schedules,
)
from sa_jobqueue.aio.upkeep import check_schema, drain_workers, list_workers, prune

after_commit = operations.after_commit
"""The same function: it does no I/O, so it has no colour."""

__all__ = [
    "after_commit",
    "cancel_chains",
    "cancel_jobs",
    "check_schema",
    "complete_job",
    "delete_chains",
    "delete_schedules",
    "dismiss_dead_letters",
    "drain_workers",
    "enqueue",
    "enqueue_many",
    "enqueue_many_unique",
    "enqueue_payloads",
    "enqueue_unique",
    "explain_job",
    "fire_schedules",
    "get_chain",
    "get_job",
    "get_progress",
    "group_dead_letters",
    "list_attempts",
    "list_blocked_jobs",
    "list_blockers",
    "list_chain_jobs",
    "list_chains",
    "list_dead_letters",
    "list_job_types",
    "list_jobs",
    "list_queues",
    "list_schedules",
    "list_workers",
    "lock_chain",
    "pause_job_types",
    "pause_queues",
    "pause_schedules",
    "prune",
    "put_job_type",
    "put_queue",
    "put_schedule",
    "redrive_dead_letters",
    "reschedule_jobs",
    "resize_workers",
    "resume_job_types",
    "resume_queues",
    "resume_schedules",
    "run_schedule",
    "sync_queues",
    "sync_schedules",
    "trigger_jobs",
]

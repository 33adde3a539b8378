"""The declarations of an application: handlers, batches, selectors, middleware, queues and schedules.

`JobQueue` and `Schedule` are in `sa_jobqueue` too; settings are in `sa_jobqueue.settings`.
"""

from sa_jobqueue.payloads import PayloadCodec
from sa_jobqueue.payloads.references import LoadOptions, Ref
from sa_jobqueue.registry.batches import BatchFailed, BatchItem
from sa_jobqueue.registry.handlers import Handler
from sa_jobqueue.registry.job_queue import JobQueue
from sa_jobqueue.registry.middleware import Proceed
from sa_jobqueue.registry.options import BatchOptions, HandlerOptions, Options
from sa_jobqueue.registry.relationships import job_relationship
from sa_jobqueue.registry.schedules import Schedule
from sa_jobqueue.registry.selectors import Candidate, Selector, SelectorOptions

__all__ = [
    "BatchFailed",
    "BatchItem",
    "BatchOptions",
    "Candidate",
    "Handler",
    "HandlerOptions",
    "JobQueue",
    "LoadOptions",
    "Options",
    "PayloadCodec",
    "Proceed",
    "Ref",
    "Schedule",
    "Selector",
    "SelectorOptions",
    "job_relationship",
]

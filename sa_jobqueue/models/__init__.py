"""The mapped classes: a mixin for an application's own base, and a ready-made queue on a base of ours."""

from sa_jobqueue.layout import Layout
from sa_jobqueue.models.attempt import AttemptMixin
from sa_jobqueue.models.audit import AuditMixin
from sa_jobqueue.models.base import Base
from sa_jobqueue.models.blocker import BlockerMixin
from sa_jobqueue.models.chain import ChainMixin
from sa_jobqueue.models.dead_letter import DeadLetterMixin
from sa_jobqueue.models.event import EventMixin
from sa_jobqueue.models.job import JobClass, JobMixin
from sa_jobqueue.models.minute import MinuteMixin
from sa_jobqueue.models.quarantine import QuarantineMixin
from sa_jobqueue.models.queue import JobTypeMixin, QueueMixin
from sa_jobqueue.models.rate_state import RateStateMixin
from sa_jobqueue.models.schedule import ScheduleMixin
from sa_jobqueue.models.step import StepMixin
from sa_jobqueue.models.threshold import ThresholdMixin
from sa_jobqueue.models.waits import WaitFor, sequence
from sa_jobqueue.models.worker import WorkerMixin


class Job(JobMixin, Base):
    """The ready-made queue: its tables, `job`, `job_attempt`, `dead_letter`, `worker` and so on, on the search path.

    `import sa_jobqueue.pipeline` adds the tables of Spark's writes and of the archive.
    """


__all__ = [
    "AttemptMixin",
    "AuditMixin",
    "Base",
    "BlockerMixin",
    "ChainMixin",
    "DeadLetterMixin",
    "EventMixin",
    "Job",
    "JobClass",
    "JobMixin",
    "JobTypeMixin",
    "Layout",
    "MinuteMixin",
    "QuarantineMixin",
    "QueueMixin",
    "RateStateMixin",
    "ScheduleMixin",
    "StepMixin",
    "ThresholdMixin",
    "WaitFor",
    "WorkerMixin",
    "sequence",
]

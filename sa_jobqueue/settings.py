"""Settings of queues, job types, schedules and retention: values that are checked when made."""

from sa_jobqueue.policies.retention import FOREVER, Retention, RetentionRules
from sa_jobqueue.registry.limits import Limits, QueueSettings, TypeSettings
from sa_jobqueue.registry.schedules import MisfirePolicy

__all__ = [
    "FOREVER",
    "Limits",
    "MisfirePolicy",
    "QueueSettings",
    "Retention",
    "RetentionRules",
    "TypeSettings",
]

"""Settings of queues, job types, schedules and retention: values that are checked when made."""

from sa_jobqueue.policies.retention import FOREVER, Retention, RetentionRules
from sa_jobqueue.registry.schedules import MisfirePolicy
from sa_jobqueue.registry.settings import Limits, QueueSettings, TypeSettings

__all__ = [
    "FOREVER",
    "Limits",
    "MisfirePolicy",
    "QueueSettings",
    "Retention",
    "RetentionRules",
    "TypeSettings",
]

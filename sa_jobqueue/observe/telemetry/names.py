"""Names of attributes of spans and metrics."""

from __future__ import annotations

from typing import Any, Final

SCOPE: Final = "sa_jobqueue"
SYSTEM: Final = "sa_jobqueue"
SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.43.0"

JOB_TYPE: Final = "messaging.sa_jobqueue.job.type"
ATTEMPT: Final = "messaging.sa_jobqueue.job.attempt"
OUTCOME: Final = "messaging.sa_jobqueue.job.outcome"
REASON: Final = "messaging.sa_jobqueue.job.dead_reason"
STEP: Final = "messaging.sa_jobqueue.step.name"
STEP_KEY: Final = "messaging.sa_jobqueue.step.key"
STEP_KIND: Final = "messaging.sa_jobqueue.step.kind"

MESSAGE_ID: Final = "messaging.message.id"
CONVERSATION_ID: Final = "messaging.message.conversation_id"
MESSAGE_COUNT: Final = "messaging.batch.message_count"
DESTINATION: Final = "messaging.destination.name"
CLIENT_ID: Final = "messaging.client.id"
ERROR_TYPE: Final = "error.type"

ENQUEUE: Final[dict[str, Any]] = {
    "messaging.system": SYSTEM,
    "messaging.operation.name": "enqueue",
    "messaging.operation.type": "send",
}
PROCESS: Final[dict[str, Any]] = {
    "messaging.system": SYSTEM,
    "messaging.operation.name": "process",
    "messaging.operation.type": "process",
}

OTHER: Final = "other"


class Bounded:
    """Returns the first `most` names unchanged, and `other` for the rest, so that a metric's labels are bounded."""

    def __init__(self, most: int, replacement: str = OTHER) -> None:
        self._most = most
        self._other = replacement
        self._names: set[str] = set()

    def __call__(self, name: str) -> str:
        """Return the name, or the replacement if there are already `most` names."""
        if name not in self._names:
            if len(self._names) >= self._most:
                return self._other
            self._names.add(name)
        return name

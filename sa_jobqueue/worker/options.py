"""Options of a worker, validated when created."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.models.checks import NAME_RULE, is_name
from sa_jobqueue.types import MOST_CONCURRENT
from sa_jobqueue.worker.memory import IS_MEASURABLE

LEAST_MEMORY: Final = 64 * 2**20
"""Bytes. A worker holds that before it has imported any application."""
OPTIONS: Final[Mapping[str, tuple[Any, Any, str | None]]] = {
    "concurrency": (1, MOST_CONCURRENT, "Maximum number of jobs to run at a time, per process."),
    "completion_batch_size": (1, 200, None),
    "max_jobs_per_child": (1, 1_000_000, "Attempts after which a child process of isolated handlers is replaced."),
    "shutdown_timeout": (
        timedelta(0),
        timedelta(days=1),
        "How long running jobs may continue after SIGTERM before they are released.",
    ),
    "cancel_timeout": (timedelta(0), timedelta(hours=1), "How long a cancelled or timed-out handler may take to return."),
    "poll_interval": (timedelta(milliseconds=10), timedelta(minutes=10), "Time between polls when no notification arrives."),
    "prune_interval": (timedelta(milliseconds=100), timedelta(days=1), None),
    "heartbeat_interval": (timedelta(milliseconds=100), timedelta(minutes=5), "Time between heartbeats."),
    "heartbeat_timeout": (
        None,
        None,
        "Without a heartbeat for this long a worker is dead. Use one value for all workers.",
    ),
}
"""Bounds of options, and the help of those that `sa-jobqueue worker` has as well."""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """Options of a `Worker`. The defaults suit a production worker on a small server."""

    name: str | None = None
    """Display name: 1 to 64 characters of A-Z, a-z, 0-9 and `_.-`. Default: the host name."""
    queues: Sequence[str] | Mapping[str, int | None] = ()
    """Queues to serve, by default those of its handlers; a mapping also limits how many jobs of a queue this worker runs at
    a time."""
    fair: bool = True
    """Whether the queues share the worker's slots by weight; priorities then apply within a queue. If off, priorities
    apply across all queues."""
    concurrency: int = 10
    """Maximum number of jobs to run at a time, 1 to 10,000. Each sync handler uses a thread, each session a connection."""
    poll_interval: timedelta = timedelta(seconds=5)
    """How often to poll for due jobs if no notification arrives, 10 ms to 10 min. If it is not below
    `heartbeat_interval`, heartbeats do that."""
    listen: bool = True
    """Whether to listen for notifications, on a dedicated connection. If off, the worker only polls."""
    heartbeat_interval: timedelta = timedelta(seconds=5)
    """How often to send a heartbeat, which also looks for jobs to rescue, 100 ms to 5 min; while a worker that listens
    is idle, up to 45 s."""
    heartbeat_timeout: timedelta = timedelta(seconds=15)
    """How long after its last heartbeat a worker counts as dead; more than two heartbeat intervals. Use the same value
    for all workers."""
    prune_interval: timedelta = timedelta(minutes=1)
    """How often to delete chains whose retention period has ended; 100 ms to 1 day."""
    shutdown_timeout: timedelta = timedelta(seconds=30)
    """How long running jobs may finish after a stop, 0 to 1 day; the rest is then released."""
    cancel_timeout: timedelta = timedelta(seconds=5)
    """How long a cancelled handler may take to return before its attempt is ended without it, 0 to 1 h."""
    max_jobs_per_child: int = 100
    """Number of attempts after which a child process of isolated handlers is replaced, 1 to 1,000,000."""
    max_memory: int | None = None
    """Bytes, at least 64 MiB; above it the worker drains and stops, so that it can be restarted. None: no limit. Linux
    only."""
    completion_batch_size: int = 200
    """Maximum number of completions per statement, 1 to 200."""

    limits: Mapping[str, int | None] = field(init=False)
    """The queues and their limits, from `queues`."""

    def __post_init__(self) -> None:
        limits = dict(self.queues) if isinstance(self.queues, Mapping) else dict.fromkeys(self.queues)
        object.__setattr__(self, "limits", limits)
        if isinstance(self.queues, str):
            raise InvalidOptionError("queues", f"must be a list of names, got the string {self.queues!r}")
        if self.name is not None and not _NAME.fullmatch(self.name):
            raise InvalidOptionError("name", f"must be 1 to 64 characters of A-Z, a-z, 0-9 and _.-, got {self.name!r}")
        for queue, limit in limits.items():
            if not is_name(queue):
                reason = f"{NAME_RULE}, got {queue!r}; pass limits as a mapping: {{'reports': 2}}"
                raise InvalidOptionError("queues", reason)
            if limit is not None and (not isinstance(limit, int) or not 1 <= limit <= 10_000):
                raise InvalidOptionError("queues", f"the limit of {queue!r} must be from 1 to 10,000, got {limit!r}")
        for name, (low, high, _) in OPTIONS.items():
            if low is not None:
                self._between(name, getattr(self, name), low, high)
        if self.max_memory is not None:
            self._between("max_memory", self.max_memory, LEAST_MEMORY, 2**60)
            if not IS_MEASURABLE:
                raise InvalidOptionError("max_memory", "is supported on Linux only; leave it unset")
        if not isinstance(self.heartbeat_timeout, timedelta) or self.heartbeat_timeout <= 2 * self.heartbeat_interval:
            raise InvalidOptionError(
                "heartbeat_timeout",
                f"must be a timedelta of more than two heartbeat intervals ({2 * self.heartbeat_interval}), "
                f"got {self.heartbeat_timeout!r}",
            )

    @staticmethod
    def _between(option: str, value: Any, low: Any, high: Any) -> None:
        if not isinstance(value, type(low)) or isinstance(value, bool) or not low <= value <= high:
            kind = "a timedelta" if isinstance(low, timedelta) else "a whole number"
            raise InvalidOptionError(option, f"must be {kind} from {low} to {high}, got {value!r}")

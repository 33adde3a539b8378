"""A worker's options, checked when made."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.policies.fairness import check_whole
from sa_jobqueue.types import MOST_CONCURRENT
from sa_jobqueue.worker.background.memory import CAN_BE_TOLD

LEAST_MEMORY: Final = 64 * 2**20
"""Bytes. A worker holds that before it has imported any application."""
_QUEUE: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/-]{0,99}")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """How a worker works; every default suits a production worker on a small server."""

    name: str | None = None
    """What people call it: 1 to 64 letters, digits and `_.-`; the host's name unless given. Need not be unique."""
    queues: Sequence[str] | Mapping[str, int | None] = ()
    """Which queues it serves; a number limits how many jobs of that queue it runs at once. Empty: the queues its handlers
    use by default."""
    fair: bool = True
    """Whether its queues share its slots by their weights, so that a flood in one never keeps the others waiting; priorities
    decide within a queue then. Off: priorities decide over all queues, and within one those queues first that are given
    first."""
    concurrency: int = 10
    """How many jobs it runs at once, 1 to 10,000. Sync handlers each take a thread, sessions each a connection."""
    poll_interval: timedelta = timedelta(seconds=5)
    """How long it waits for a notification before it looks by itself; 10 ms to 10 min. Nothing waits longer than that."""
    listen: bool = True
    """Whether it listens for notifications, on one connection of its own. Off: polling alone."""
    heartbeat_interval: timedelta = timedelta(seconds=5)
    """How often it says that it lives; 100 ms to 5 min."""
    heartbeat_timeout: timedelta = timedelta(seconds=15)
    """How long it may be silent before others take its jobs back; more than two beats. Give all workers the same."""
    rescue_interval: timedelta = timedelta(seconds=4)
    """How often it looks for jobs of silent workers; 100 ms to 10 min. A dead worker's jobs are due again after at most
    `heartbeat_timeout` and this: 19 s by default."""
    prune_interval: timedelta = timedelta(minutes=1)
    """How often it looks for chains whose time is up, where anything says how long they are kept; 100 ms to 1 day."""
    shutdown_timeout: timedelta = timedelta(seconds=30)
    """How long running jobs may finish after a stop; what is left then is given back. Not negative."""
    cancel_timeout: timedelta = timedelta(seconds=5)
    """How long a job that was told to stop may take to do so before its attempt is ended without it. Not negative."""
    max_jobs_per_child: int = 100
    """How many attempts a child process of isolated handlers runs before another takes its place, 1 to 1,000,000."""
    max_memory: int | None = None
    """Bytes that the worker's process may hold; with more it drains and stops, to be started anew. At least 64 MiB; None
    is without limit. Linux."""
    completion_batch_size: int = 200
    """Most completions in one statement, 1 to 200."""

    limits: Mapping[str, int | None] = field(init=False)
    """The queues with their limits, as read from `queues`."""

    def __post_init__(self) -> None:
        limits = dict(self.queues) if isinstance(self.queues, Mapping) else dict.fromkeys(self.queues)
        object.__setattr__(self, "limits", limits)
        if isinstance(self.queues, str):
            raise InvalidOptionError("queues", "must be a list of names, not one name")
        if self.name is not None and not _NAME.fullmatch(self.name):
            raise InvalidOptionError("name", f"must be 1 to 64 letters, digits and _.-, got {self.name!r}")
        for queue, limit in limits.items():
            check_whole("queues", queue)
            if not isinstance(queue, str) or not _QUEUE.fullmatch(queue):
                raise InvalidOptionError(
                    "queues", f"{queue!r} is no queue's name; a limit is given by a mapping: {{'reports': 2, 'mail': None}}"
                )
            if limit is not None and (not isinstance(limit, int) or not 1 <= limit <= 10_000):
                raise InvalidOptionError("queues", f"the limit of {queue!r} must be from 1 to 10,000, got {limit!r}")
        self._between("concurrency", self.concurrency, 1, MOST_CONCURRENT)
        self._between("completion_batch_size", self.completion_batch_size, 1, 200)
        self._between("max_jobs_per_child", self.max_jobs_per_child, 1, 1_000_000)
        if self.max_memory is not None:
            self._between("max_memory", self.max_memory, LEAST_MEMORY, 2**60)
            if not CAN_BE_TOLD:
                raise InvalidOptionError("max_memory", "cannot be watched on this system: Linux alone tells it")
        self._between("poll_interval", self.poll_interval, timedelta(milliseconds=10), timedelta(minutes=10))
        self._between("heartbeat_interval", self.heartbeat_interval, timedelta(milliseconds=100), timedelta(minutes=5))
        self._between("rescue_interval", self.rescue_interval, timedelta(milliseconds=100), timedelta(minutes=10))
        self._between("prune_interval", self.prune_interval, timedelta(milliseconds=100), timedelta(days=1))
        self._between("shutdown_timeout", self.shutdown_timeout, timedelta(0), timedelta(days=1))
        self._between("cancel_timeout", self.cancel_timeout, timedelta(0), timedelta(hours=1))
        if not isinstance(self.heartbeat_timeout, timedelta) or self.heartbeat_timeout <= 2 * self.heartbeat_interval:
            raise InvalidOptionError(
                "heartbeat_timeout",
                f"must be more than two heartbeat intervals ({2 * self.heartbeat_interval}), got {self.heartbeat_timeout!r}",
            )

    @staticmethod
    def _between(option: str, value: Any, low: Any, high: Any) -> None:
        if not isinstance(value, type(low)) or isinstance(value, bool) or not low <= value <= high:
            kind = "a timedelta" if isinstance(low, timedelta) else "a whole number"
            raise InvalidOptionError(option, f"must be {kind} from {low} to {high}, got {value!r}")

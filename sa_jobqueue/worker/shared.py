"""Objects that the parts of one run of a worker share: database, registry, identity, options, events and signals."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from sqlalchemy.ext.asyncio import AsyncEngine

from sa_jobqueue.events import EventBus
from sa_jobqueue.models import JobClass
from sa_jobqueue.operations.queues import recorded_values
from sa_jobqueue.policies.fairness import QueueKey
from sa_jobqueue.registry.job_queue import JobQueue
from sa_jobqueue.registry.schedules import SETTINGS
from sa_jobqueue.version import __version__
from sa_jobqueue.worker.options import WorkerOptions
from sa_jobqueue.worker.ownership import Ownership
from sa_jobqueue.worker.quarantine import Quarantine
from sa_jobqueue.worker.signals import Signals


@dataclass(frozen=True, slots=True)
class Identity:
    """The record of a worker in its row."""

    id: str
    name: str
    host: str
    pid: int
    version: str
    queues: list[str]
    job_types: list[str]
    concurrency: int
    selectors: dict[str, Any] = field(default_factory=dict)
    type_slots: dict[str, int] = field(default_factory=dict)
    type_versions: dict[str, int] = field(default_factory=dict)


def digests(jobs: JobQueue[Any]) -> dict[str, str]:
    """Return a digest of each job type, queue and schedule that code declares, by kind and name, such as `type refund`."""
    declared: dict[str, Any] = {f"type {kind.name}": recorded_values(kind) for kind in jobs.registry}
    declared |= {f"queue {QueueKey(queue.name, queue.fairness_key).label}": queue for queue in jobs.declared_queues}
    for schedule in jobs.schedules:
        # Not the input, which may be private, and whose digest could be guessed.
        declared[f"schedule {schedule.name}"] = [getattr(schedule, name) for name in SETTINGS if name != "input"]
    return {name: sha256(repr(values).encode()).hexdigest()[:8] for name, values in declared.items()}


def identify(jobs: JobQueue[Any], options: WorkerOptions) -> Identity:
    """Return the identity of a new worker, with a unique id."""
    name = options.name or socket.gethostname()[:40] or "worker"
    return Identity(
        id=f"{name}:{secrets.token_hex(6)}",
        name=name,
        host=socket.gethostname(),
        pid=os.getpid(),
        version=__version__,
        queues=list(options.limits),
        job_types=list(jobs.registry.names),
        concurrency=options.concurrency,
        selectors={queue: selector.settings for queue, selector in jobs.selectors.items() if queue in options.limits},
        type_versions={kind.name: kind.version for kind in jobs.registry},
        type_slots={kind.name: kind.concurrency for kind in jobs.registry if kind.concurrency is not None},
    )


def version_parameters(type_versions: Mapping[str, int]) -> dict[str, list[Any]]:
    """Return the parameters of `statements._lanes.is_known_version`."""
    return {"version_types": list(type_versions), "versions": list(type_versions.values())}


class Shared:
    """The objects that all parts of one run have. `engine`: of the worker's own connections, which commit each statement."""

    def __init__(
        self, engine: AsyncEngine, jobs: JobQueue[Any], identity: Identity, options: WorkerOptions, events: EventBus
    ) -> None:
        self.engine, self.jobs, self.identity, self.options, self.events = engine, jobs, identity, options, events
        self.model: JobClass = jobs.model
        self.signals = Signals()
        self.quarantine = Quarantine(engine, self.model, identity.id, events)
        self.ownership = Ownership(engine, self.model, identity.id)


class Part:
    """Base class of the parts of a worker, with what they share as attributes."""

    def __init__(self, shared: Shared) -> None:
        self._engine = shared.engine
        # For several statements in one transaction.
        self._transactions = shared.engine.execution_options(isolation_level="READ COMMITTED")
        self._jobs, self._model, self._options = shared.jobs, shared.model, shared.options
        self._identity, self._worker_id = shared.identity, shared.identity.id
        self._events, self._signals = shared.events, shared.signals
        self._quarantine, self._ownership = shared.quarantine, shared.ownership

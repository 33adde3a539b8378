"""Which systems are measured beside each other, and what each of them promises."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

OLDEST_PYTHON: Final = (3, 11)


@dataclass(frozen=True, slots=True, kw_only=True)
class Promises:
    """What one gets for the price: short answers, for a table."""

    fenced: str
    """Whether a worker that was given up can still finish its job."""
    rescued: str
    """What becomes of the jobs of a worker that died."""
    retained: str
    """The remains of a finished job."""
    session: str
    """How a job is enqueued in the application's own transaction."""
    durable: str = "yes"
    """Whether a job that was enqueued survives a power cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """One system in one mode."""

    name: str
    environment: str | None
    """Which virtual environment it needs; None runs in this one."""
    script: str
    """Its adapter."""
    settings: str
    """How it is set up: the fastest way according to its documentation."""
    promises: Promises
    orders: Mapping[str, str] = field(default_factory=dict)
    oldest_python: tuple[int, int] = OLDEST_PYTHON
    is_node: bool = False
    """Whether it is written for Node.js: its packages come from npm."""
    is_elsewhere: bool = False
    """Whether its jobs are not in PostgreSQL."""
    most: int = 10_000
    """Most jobs of a drain, for those that are slow by nature."""


OURS: Final = System(
    name="sa_jobqueue",
    environment=None,
    script="ours.py",
    settings="`sa-jobqueue worker`: psycopg, 100 at once, uvloop, LISTEN",
    promises=Promises(
        fenced="yes",
        rescued="by any worker, once its lease has ended",
        retained="row, output, every attempt",
        session="`session.add(Job(...))`, Session and AsyncSession",
    ),
)

APPLICATION: Final = replace(OURS, name="application", script="application_adapter.py")
"""No queue: what else uses the database of one."""

_PGQUEUER: Final = Promises(
    fenced="no: by id",
    rescued="by any worker, once its heartbeat is old",
    retained="a line in a log; payloads are deleted",
    session="its own calls on your driver connection",
)

OBJECTS: Final = replace(OURS, name="sa_jobqueue, objects", orders={"by": "objects"})
"""Ours as most applications enqueue: `session.add(job)`, and `enqueue_many` of jobs. Drained as the other."""

CONNECTION: Final = replace(OURS, name="sa_jobqueue, connection", orders={"by": "connection"})
"""Ours without a session: `handler.enqueue` on a Core connection in AUTOCOMMIT, as PgQueuer's own examples connect."""

PEERS: Final[tuple[System, ...]] = (
    System(
        name="pgqueuer, asyncpg",
        environment="pgqueuer",
        script="pgqueuer_adapter.py",
        orders={"driver": "asyncpg"},
        settings="one asyncpg connection, batches of 100, uvloop, LISTEN",
        promises=_PGQUEUER,
    ),
    System(
        name="pgqueuer, psycopg",
        environment="pgqueuer",
        script="pgqueuer_adapter.py",
        orders={"driver": "psycopg"},
        settings="one psycopg connection, batches of 100, uvloop, LISTEN",
        promises=_PGQUEUER,
        most=5_000,
    ),
    System(
        name="awa",
        environment="awa",
        script="awa_adapter.py",
        settings="queue storage, 128 workers, a pool of 20, COPY for bulk, LISTEN",
        promises=Promises(
            fenced="yes",
            rescued="by any worker, once its heartbeat is old",
            retained="append-only history, truncated in time",
            session="a bridge, one job a call",
        ),
    ),
    System(
        name="chancy",
        environment="chancy",
        script="chancy_adapter.py",
        settings="asyncio executor, 100 at once, eager polling, LISTEN, no plugins",
        promises=Promises(
            fenced="yes, since 0.26",
            rescued="by a plugin, not loaded here",
            retained="row",
            session="its own calls on a psycopg cursor",
        ),
    ),
    System(
        name="oban",
        environment="oban",
        script="oban_adapter.py",
        oldest_python=(3, 12),
        settings="limit 100, a pool of 10, uvloop, LISTEN",
        promises=Promises(
            fenced="by the time of the attempt",
            rescued="by age: 5 minutes after it began, alive or not",
            retained="row",
            session="`enqueue(..., conn=)`, AsyncSession",
        ),
    ),
    System(
        name="procrastinate",
        environment="procrastinate",
        script="procrastinate_adapter.py",
        settings="PsycopgConnector, concurrency 100, a pool of 10, LISTEN, jobs kept",
        promises=Promises(
            fenced="no: by id and status",
            rescued="by a periodic task you write",
            retained="row, events",
            session="`configure(connection=)`, psycopg",
        ),
        most=2_000,
    ),
    System(
        name="bullmq",
        environment="bullmq",
        script="bullmq_adapter.cjs",
        is_node=True,
        settings="Node.js, concurrency 32, a pool of 32, LISTEN, jobs kept",
        promises=Promises(
            fenced="yes",
            rescued="by any worker, a check after its lock has expired; the second time it fails",
            retained="row",
            session="not at all",
        ),
    ),
    System(
        name="celery, Redis",
        environment="celery",
        script="celery_adapter.py",
        settings="Redis as Debian ships it, solo pool, acks late, prefetch 100, results ignored",
        promises=Promises(
            fenced="no",
            rescued="after the visibility timeout, an hour",
            retained="nothing",
            session="not at all",
            durable="to the last snapshot",
        ),
        is_elsewhere=True,
        most=2_000,
    ),
    System(
        name="rq, Redis",
        environment="rq",
        script="rq_adapter.py",
        settings="Redis as Debian ships it, SimpleWorker (no fork a job), results kept 500 s",
        promises=Promises(
            fenced="no",
            rescued="by any worker, once its heartbeat is old",
            retained="the job and its result, 500 s",
            session="not at all",
            durable="to the last snapshot",
        ),
        is_elsewhere=True,
        most=1_000,
    ),
    System(
        name="dramatiq, Redis",
        environment="dramatiq",
        script="dramatiq_adapter.py",
        settings="Redis as Debian ships it, 8 threads, its default middleware",
        promises=Promises(
            fenced="no",
            rescued="by any worker, once its heartbeat is old",
            retained="nothing",
            session="not at all",
            durable="to the last snapshot",
        ),
        is_elsewhere=True,
        most=2_000,
    ),
    System(
        name="taskiq, Redis",
        environment="taskiq",
        script="taskiq_adapter.py",
        settings="Redis as Debian ships it, a stream, 100 at once, uvloop, results ignored",
        promises=Promises(
            fenced="no",
            rescued="by any worker, 10 minutes after it was fetched",
            retained="the stream's entries",
            session="not at all",
            durable="to the last snapshot",
        ),
        is_elsewhere=True,
        most=2_000,
    ),
)

SYSTEMS: Final = (OURS, *PEERS)

_DURABLE: Final = Promises(
    fenced="by the version of the step's row",
    rescued="by their own rules",
    retained="the workflow and each step's result",
    session="not at all",
)
STEPPERS: Final[tuple[System, ...]] = (
    System(
        name="DBOS",
        environment="dbos",
        script="dbos_adapter.py",
        settings="`@DBOS.step` in a workflow, asynchronous",
        promises=_DURABLE,
    ),
    System(
        name="Absurd",
        environment="absurd",
        script="absurd_adapter.py",
        settings="`ctx.step` of its `AsyncAbsurd`, one connection",
        promises=_DURABLE,
    ),
)
"""Systems that are measured for their steps alone."""

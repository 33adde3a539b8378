"""The queues of a dashboard, and the transactions that read and change them."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from sqlalchemy import Engine, create_engine, func, select, text
from sqlalchemy.exc import DBAPIError, ProgrammingError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.orm import Session

from sa_jobqueue.dashboard.sampler import AT_MOST, FRESH, SHARE, Sampler, sentence
from sa_jobqueue.db.urls import for_psycopg
from sa_jobqueue.errors import InvalidOptionError, JobQueueError, SchemaError
from sa_jobqueue.models import AuditMixin, Job, JobClass, JobMixin
from sa_jobqueue.observe.health import Health, health
from sa_jobqueue.observe.minutes import Figures, series
from sa_jobqueue.observe.shares import Shares, shares
from sa_jobqueue.operations import AuditFilter, check_schema, list_audit
from sa_jobqueue.registry.job_queue import JobQueue

NAME: Final = "sa_jobqueue dashboard"
"""`application_name` of its transactions in `pg_stat_activity`."""
_READINESS_SECONDS: Final = 2.0
_log = logging.getLogger("sa_jobqueue.dashboard")
_SOURCE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,49}")


MARKED: Final = {
    "pause_queues": "paused",
    "resume_queues": "resumed",
    "pause_job_types": "paused",
    "resume_job_types": "resumed",
    "upsert_queue": "settings changed",
    "upsert_job_type": "settings changed",
}
"""Operations that charts mark, with what happened."""
MOST_MARKS: Final = 30
"""Maximum number of marked operations in a chart."""


class Recorded(NamedTuple):
    """Recorded minutes, and the acts of operators in them."""

    since: datetime
    points: list[Figures]
    acts: list[AuditMixin]


@dataclass(kw_only=True, eq=False)
class Source:
    """One queue of a dashboard.

    `name`: part of its URLs, 1 to 50 letters, digits, _ and -. `engine`: reads; give it the observer's role.
    `jobs`: the `JobQueue` or `Job` class. `operator`: changes what users change; None for a read-only queue.
    `timeout`: of each statement.
    """

    name: str
    engine: Engine | AsyncEngine
    jobs: JobQueue[Any] | JobClass = Job
    operator: Engine | AsyncEngine | None = None
    timeout: timedelta = timedelta(seconds=5)
    heartbeat_timeout: timedelta = timedelta(seconds=15)
    """Heartbeat timeout of the workers."""
    model: JobClass = field(init=False, repr=False)
    """The `Job` class of `jobs`."""
    sampler: Sampler[Health] = field(init=False, repr=False)
    """Health of the queue, shared by its viewers."""
    shares: Sampler[Shares] = field(init=False, repr=False)
    """Shares of the last minute. Counting them reads all jobs that changed recently, so viewers share the result."""

    recorded: Sampler[Recorded] = field(init=False, repr=False)
    """The minutes of the last hour, shared by viewers."""
    is_replica: bool = field(init=False, repr=False, default=False)
    """Whether the database that is read was a replica when it last answered."""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _SOURCE.fullmatch(self.name):
            raise InvalidOptionError("name", f"must be 1 to 50 letters, digits, _ and -, got {self.name!r}")
        if not timedelta(milliseconds=100) <= self.timeout <= timedelta(minutes=1):
            raise InvalidOptionError("timeout", f"must be from 0.1 s to 1 min, got {self.timeout}")
        model = self.jobs.model if isinstance(self.jobs, JobQueue) else self.jobs
        if not (isinstance(model, type) and issubclass(model, JobMixin)):
            raise InvalidOptionError("jobs", f"must be a JobQueue or a Job class, got {self.jobs!r}")
        self.model = model
        self.sampler = Sampler(self._health, at_most=FRESH)
        self._whole: tuple[Health, float] | None = None
        """The last whole report, and until when it is kept, on the monotonic clock."""
        self.shares = Sampler(self._shares)
        self.recorded = Sampler(self._recorded)
        self._reader = _threaded(self.engine)
        self._writer = None if self.operator is None else _threaded(self.operator)
        self._is_checked = False
        self._readiness = (float("-inf"), False)
        self._clock: tuple[datetime, float] | None = None

    @property
    def is_read_only(self) -> bool:
        """Whether there is no engine that could write, or its database is a replica, which accepts no writes."""
        return self.operator is None or (self.is_replica and self.operator is self.engine)

    def now(self) -> datetime:
        """Return the time by the database's clock, as of its last answer; by this machine's if it never answered."""
        clock = self._clock
        if clock is None:
            return datetime.now(UTC)
        return (clock[0] + timedelta(seconds=time.monotonic() - clock[1])).astimezone(UTC)

    @contextmanager
    def read(self) -> Iterator[Session]:
        """Yield a session in a READ ONLY transaction whose statements are bounded by `timeout`. Raises: SchemaError."""
        with Session(self._reader) as session:
            self._begin(session, read_only=True)
            if not self._is_checked:
                check_schema(session, model=self.model)
                self._is_checked = True
            try:
                yield session
            except (ProgrammingError, SchemaError):
                # A table or column is missing: the tables were migrated since, and the next page says to what.
                self._is_checked = False
                raise

    @contextmanager
    def write(self) -> Iterator[Session]:
        """Yield a session of the operator engine, which commits at the end. Raises: InvalidOptionError if read-only."""
        if self._writer is None:
            raise InvalidOptionError("operator", "is not set: this dashboard is read-only")
        with Session(self._writer) as session, session.begin():
            self._begin(session, read_only=False)
            yield session

    def measure_again(self) -> None:
        """Have the next page measure whole reports instead of the parts that cost little."""
        self._whole = None
        for sampler in (self.sampler, self.shares, self.recorded):
            sampler.expire()

    def dispose(self) -> None:
        """Close the connections that were opened in place of an async engine's; engines that were given stay as they are."""
        for application_engine, used in ((self.engine, self._reader), (self.operator, self._writer)):
            if used is not None and used is not application_engine:
                used.dispose()

    def is_ready(self) -> bool:
        """Return whether the database answers and has this version's tables; asked at most every two seconds."""
        asked_at, was_ready = self._readiness
        if time.monotonic() - asked_at >= _READINESS_SECONDS:
            try:
                with self.read() as session:
                    session.execute(select(1))
                was_ready = True
            except (DBAPIError, PoolTimeoutError, JobQueueError) as error:
                _log.warning("dashboard is not ready: %s", sentence(error))
                was_ready = False
            self._readiness = (time.monotonic(), was_ready)
        return was_ready

    def _begin(self, session: Session, *, read_only: bool) -> None:
        if read_only:
            session.execute(text("SET TRANSACTION READ ONLY"))
        # For the transaction only: the application's pool must not keep them.
        settings = {"statement_timeout": f"{self.timeout.total_seconds() * 1000:.0f}ms", "application_name": NAME}
        settings_columns = (func.set_config(name, value, True) for name, value in settings.items())
        clock_columns = (func.clock_timestamp().label("now"), func.pg_is_in_recovery().label("is_replica"))
        row = session.execute(select(*clock_columns, *settings_columns)).one()
        self._clock = row.now, time.monotonic()
        if read_only:
            self.is_replica = row.is_replica
        elif row.is_replica:
            raise InvalidOptionError("operator", "is a replica, which accepts no writes; nothing was changed")

    def _shares(self) -> Shares:
        with self.read() as session:
            return shares(session, model=self.model)

    def _recorded(self) -> Recorded:
        with self.read() as session:
            since = self.now().replace(second=0, microsecond=0) - timedelta(hours=1)
            where = AuditFilter(operations=list(MARKED), done_after=since)
            acts = list_audit(session, where=where, limit=MOST_MARKS, model=self.model)
            return Recorded(since, series(session, since=since, model=self.model), list(acts))

    def _health(self) -> Health:
        self._is_checked = False
        with self.read():
            pass  # an unreachable database, or tables of another version since the last report, as one sentence
        options: dict[str, Any] = {"timeout": self.timeout, "heartbeat_timeout": self.heartbeat_timeout, "model": self.model}
        whole, began = self._whole, time.monotonic()
        if whole is not None and began < whole[1]:
            return health(self._reader, last=whole[0], **options)
        report = health(self._reader, **options)
        took = time.monotonic() - began
        self._whole = report, time.monotonic() + min(took * SHARE, AT_MOST.total_seconds())
        return report


def _threaded(engine: Engine | AsyncEngine) -> Engine:
    """Return an engine for threads: the given one, or for an async engine one of the same URL."""
    if isinstance(engine, Engine):
        return engine
    if isinstance(engine, AsyncEngine):
        return create_engine(for_psycopg(engine.url, option="engine"), pool_size=3, max_overflow=7)
    raise InvalidOptionError("engine", f"must be an Engine or AsyncEngine, got a {type(engine).__name__}")

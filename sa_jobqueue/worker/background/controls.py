"""Runtime settings of queues, job types and this worker, reloaded while it runs.

The rows of `queue`, `job_type` and `worker` become one immutable `Controls`. When it starts, a worker first inserts the
settings that code declares for queues without a row, where existing rows stay as they are, and records what its handlers
declare. It reads the rows at start, after a
notification of a change, and after a tick that found other settings than the one before: a lost notification delays a change
by that long. They are not
part of a claim: a claim receives fewer lanes and fewer types, and its cursors are dropped when it receives more again, so
that no job that came in between lies behind them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, TypeVar

from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession

from sa_jobqueue.db.compiled import compiled
from sa_jobqueue.db.splitting import NO_RIGHT, sqlstate
from sa_jobqueue.db.timeouts import waited
from sa_jobqueue.events import ComponentFailed, JobTypesDiffer, SettingsDiffer
from sa_jobqueue.models.options import DECLARED
from sa_jobqueue.operations.queues import Differences, add_declared_queues, record_job_types, recorded_values
from sa_jobqueue.policies.fairness import QueueKey
from sa_jobqueue.policies.retry import Backoff
from sa_jobqueue.registry.settings import QueueColumns
from sa_jobqueue.statements import controls, workers
from sa_jobqueue.types import RefusedWrite
from sa_jobqueue.worker.component import Component
from sa_jobqueue.worker.shared import Part, Shared
from sa_jobqueue.worker.signals import TickResult

R = TypeVar("R")

WRITE_AGAIN: Final = 20.0
"""Seconds until declarations that could not be written are tried again."""
REPORT_AGAIN: Final = 300.0
"""Seconds between two reports of job types that are recorded with other values."""
READ_EVERY_ALONE: Final = 1.0
"""Seconds between two reads of a worker that receives no notifications."""
_DECLARATIONS: Final = (RefusedWrite.DECLARE_QUEUE, RefusedWrite.RECORD_TYPE)
_LOCKED: Final = "55P03"
_LOCK_TIMEOUT: Final = text("SET LOCAL lock_timeout = '2s'")
"""An open transaction that inserts one of the rows must not keep a worker from starting."""
_UNREAD: Final = "unread"
"""Equals no hash: the next tick leads to a reading."""
_PACE: Final = 0.05
"""Minimum seconds between two reads: changes in quick succession are read together."""


@dataclass(frozen=True, kw_only=True)
class Control(QueueColumns):
    """Settings of one queue or job type; the defaults apply if there are none."""

    is_paused: bool = False
    """Whether none of its jobs is started."""

    @property
    def is_limited(self) -> bool:
        """Whether its jobs are claimed by one claim at a time across all workers."""
        return any(limit is not None for limit in (self.global_concurrency, self.rate_limit, self.concurrency_per_key))


DEFAULTS: Final = Control()


@dataclass(frozen=True, slots=True, kw_only=True)
class Controls:
    """All settings at one moment."""

    queues: Mapping[QueueKey, Control] = field(default_factory=dict)
    """By queue, or by fairness key of one."""
    types: Mapping[str, Control] = field(default_factory=dict)
    """By job type."""
    concurrency: int | None = None
    """Number of jobs that this worker was asked to run at a time; None: the number it was started with."""

    def queue(self, name: str, fairness_key: str = "") -> Control:
        """Return the settings of the queue `name`, or of a fairness key of it alone."""
        return self.queues.get(QueueKey(name, fairness_key), DEFAULTS)

    def type(self, name: str) -> Control:
        """Return the settings of the job type `name`."""
        return self.types.get(name, DEFAULTS)

    def retry(self, queue: str, fairness_key: str = "") -> Backoff | None:
        """Return the backoff of `queue`, or of `fairness_key` in it: its own, or that of its queue."""
        return self.queue(queue, fairness_key).retry or self.queue(queue).retry

    @property
    def paused_queues(self) -> frozenset[QueueKey]:
        """The paused queues and fairness keys: none of their jobs may start."""
        return frozenset(name for name, setting in self.queues.items() if setting.is_paused)

    @property
    def paused_types(self) -> frozenset[str]:
        """The paused job types: none of their jobs may start."""
        return frozenset(name for name, setting in self.types.items() if setting.is_paused)


class ControlReader(Part, Component):
    """Inserts the declared settings that are missing, reads all settings, and reports each change once.

    After a crash the last reading stays in force. Woken by notifications and ticks, without the former by a timer. Two may
    overlap; one per worker.
    A declaration that cannot be written is quarantined; the others are written, and the worker starts.
    """

    name = "control reader"

    def __init__(self, shared: Shared, *, on_change: Callable[[Controls], None], is_notified: Callable[[], bool]) -> None:
        super().__init__(shared)
        self._declared = {QueueKey(queue.name, queue.fairness_key): queue for queue in shared.jobs.declared_queues}
        self._types = {job_type.name: job_type for job_type in shared.jobs.registry}
        self._written: set[RefusedWrite] = set()
        self._denied: set[RefusedWrite] = set()
        self._differences: Differences = {}
        self._type_differences: Differences = {}
        self._types_reported_at = float("-inf")
        self._types_of_later = workers.types_of_later(self._model)
        self._statement = compiled(controls.of_worker, self._model)
        self._parameters = {
            "worker_id": self._worker_id,
            "queues": shared.identity.queues,
            "types": list(self._types),
        }
        self._on_change = on_change
        self._is_notified = is_notified
        self._woken = asyncio.Event()
        self._hash: str | None = _UNREAD
        """Of the last reading: that of the last tick would hide a change that is undone and made again before another."""
        self.current = Controls()
        """The last reading. Replaced as a whole, and only after a change: compare by identity."""

    def wake(self) -> None:
        """Read now: the settings may have changed."""
        self._woken.set()

    def ticked(self, answer: TickResult) -> None:
        """Read if the settings are others than at the last reading."""
        if answer.settings != self._hash:
            self._woken.set()

    def declare_again(self) -> None:
        """Insert the declared settings again where they are missing, and read: this may be a different database."""
        self._written.clear()
        self._woken.set()

    async def run(self) -> None:
        """Read until cancelled."""
        while True:
            self._woken.clear()  # before reading: a later change ends the sleep that follows
            began = time.monotonic()
            await self.read()
            await asyncio.sleep(_PACE)
            pause = self._quarantine.retry_in(*_DECLARATIONS, since=began)
            every = None if self._is_notified() else READ_EVERY_ALONE
            write = WRITE_AGAIN if self._type_differences or any(map(self._is_to_write, _DECLARATIONS)) else None
            await waited(
                self._woken, min((seconds for seconds in (every, write, pause) if seconds is not None), default=None)
            )

    async def read(self) -> None:
        """Read once; call `on_change` if anything changed. The first time, insert the declared settings that are missing."""
        if self._is_to_write(RefusedWrite.DECLARE_QUEUE):
            await self._declare()
        if self._is_to_write(RefusedWrite.RECORD_TYPE):
            await self._write(RefusedWrite.RECORD_TYPE, self._types, record_job_types)
        async with self._engine.connect() as connection:
            rows = await self._statement.execute(connection, self._parameters)
        self._hash = rows[0][-1] if rows else None
        queues, types, concurrency = dict[QueueKey, Control](), dict[str, Control](), None
        recorded: dict[str, tuple[Any, ...]] = {}
        for kind, name, fairness_key, *values, _ in rows:
            setting = {column: value for column, value in zip(controls.COLUMNS, values, strict=False) if value is not None}
            if kind == "worker":
                concurrency = setting.get("global_concurrency")
            elif kind == "type":
                types[name] = Control(**setting)
                recorded[name] = tuple(values[len(controls.COLUMNS) :])
            else:
                queues[QueueKey(name, fairness_key)] = Control(**setting)
        missing = self._types.keys() - types.keys() - set(self._quarantine.quarantined(RefusedWrite.RECORD_TYPE))
        if missing and RefusedWrite.RECORD_TYPE in self._written and RefusedWrite.RECORD_TYPE not in self._denied:
            self._written.discard(RefusedWrite.RECORD_TYPE)  # an operator has deleted the row
            self._woken.set()
        await self._compare_types(recorded)
        types = {name: control for name, control in types.items() if control != DEFAULTS}
        now = Controls(queues=queues, types=types, concurrency=concurrency)
        if now != self.current:
            self.current = now
            self._on_change(now)

    async def _declare(self) -> None:
        declared = {queue_key.label: queue for queue_key, queue in self._declared.items()}
        parts = await self._write(RefusedWrite.DECLARE_QUEUE, declared, add_declared_queues)
        differences = {name: columns for part in parts for name, columns in part.items()}
        if differences and differences != self._differences:
            self._events.emit(SettingsDiffer(self._worker_id, differences))
        self._differences = differences

    async def _compare_types(self, recorded: Mapping[str, tuple[Any, ...]]) -> None:
        """Report job types that are recorded as a live worker that started later declares them; record the others again.

        Of all live workers that handle a type, the one that started last decides: two versions do not overwrite each other.
        """
        differences: Differences = {}
        for name, values in recorded.items():
            columns = zip(DECLARED, values, recorded_values(self._types[name]), strict=True)
            if column_differences := {
                column: (stored, declared) for column, stored, declared in columns if stored != declared
            }:
                differences[name] = column_differences
        if differences and RefusedWrite.RECORD_TYPE not in self._denied:
            parameters = {"worker_id": self._worker_id, "types": list(differences), "ttl": self._options.heartbeat_timeout}
            async with self._engine.connect() as connection:
                later_types = set(await connection.scalars(self._types_of_later, parameters))
            if stale := {name: self._types[name] for name in differences if name not in later_types}:
                self._hash = _UNREAD
                await self._write(RefusedWrite.RECORD_TYPE, stale, record_job_types)
            differences = {name: columns for name, columns in differences.items() if name in later_types}
        is_due = time.monotonic() >= self._types_reported_at + REPORT_AGAIN
        if differences and (is_due or differences != self._type_differences):
            self._types_reported_at = time.monotonic()
            self._events.emit(JobTypesDiffer(self._worker_id, differences))
        self._type_differences = differences

    def _is_to_write(self, write: RefusedWrite) -> bool:
        return write not in self._written or bool(self._quarantine.lapsed(write))

    async def _write(self, write: RefusedWrite, declared: Mapping[str, Any], operation: Callable[..., R]) -> list[R]:
        """Write declarations that are not quarantined; after a failure, the next reading tries again."""
        self._written.add(write)  # before it is: `declare_again` may be called meanwhile
        quarantined = self._quarantine.quarantined(write)
        declared = {name: declaration for name, declaration in declared.items() if name not in quarantined}

        async def some(names: Sequence[str]) -> tuple[Sequence[str], R]:
            async with AsyncSession(self._transactions) as session, session.begin():
                await session.execute(_LOCK_TIMEOUT)
                new = [declared[name] for name in names]
                return names, await session.run_sync(operation, new, model=self._model)

        try:
            parts = await self._quarantine.write(write, list(declared), some)
        except BaseException as error:
            state = sqlstate(error) if isinstance(error, DBAPIError) else None
            if state == NO_RIGHT:
                self._denied.add(write)  # another try would have no right either
            else:
                self._written.discard(write)
            if state not in {NO_RIGHT, _LOCKED}:
                raise
            self._events.emit(ComponentFailed(self.name, error, timedelta(seconds=WRITE_AGAIN)))
            return []
        await self._quarantine.written(write, [name for names, _ in parts for name in names])
        return [part for _, part in parts]

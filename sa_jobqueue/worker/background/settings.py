"""What people say of queues, job types and this worker while it runs, read again and again.

The rows of `queue`, `job_type` and `worker` become one immutable `Controls`. A worker reads them when it starts, when a
notification says that something changed, and every few seconds in any case: a notification that was lost costs that long.
Nothing of it is part of a claim: a claim is given fewer lanes and fewer types, and its floors are dropped when it is given
more again, so nothing that came meanwhile lies behind them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Final

from sqlalchemy.ext.asyncio import AsyncEngine

from sa_jobqueue.db.compiled import compiled
from sa_jobqueue.models import JobMixin
from sa_jobqueue.policies.fairness import whole
from sa_jobqueue.policies.rates import Rate, RateAlgorithm
from sa_jobqueue.policies.retry import Backoff
from sa_jobqueue.registry.settings import RETRY, retry_of
from sa_jobqueue.statements import controls
from sa_jobqueue.worker.component import Component

ALONE: Final = 1.0
"""Seconds between two reads of a worker that hears no notifications."""
TOLD: Final = 20.0
"""The same of one that does."""
_PACE: Final = 0.05
"""Seconds between two reads at least: changes that come in a row are read together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """What is said of one queue or job type; the defaults are what holds where nobody said anything."""

    is_paused: bool = False
    weight: int = 1
    """Of a queue, beside those of the others; 1 to 100."""
    global_concurrency: int | None = None
    """How many of its jobs may run at once, across all workers."""
    rate_limit: int | None = None
    """How many may be started within `rate_period`, across all workers."""
    rate_period: timedelta | None = None
    rate_burst: int | None = None
    rate_algorithm: str | None = None
    sharers: int | None = None
    """Among how many workers a rate is divided; 0 before this one is known to be of them, None where it is not."""
    concurrency_per_key: int | None = None
    """How many of each fair key may run at once, of a queue and across all workers, unless the part has a number itself."""
    retry_base: timedelta | None = None
    retry_factor: float | None = None
    retry_cap: timedelta | None = None

    @property
    def retry(self) -> Backoff | None:
        """The backoff of jobs of a queue whose handlers say none; None where nothing is said of it."""
        return retry_of(self)

    @property
    def is_limited(self) -> bool:
        """Whether its jobs are claimed one claim at a time, across all workers."""
        is_rated = self.rate_limit is not None and not self.is_divided
        return self.global_concurrency is not None or is_rated or self.concurrency_per_key is not None

    @property
    def is_divided(self) -> bool:
        """Whether it has a rate of which this worker has a part."""
        return self.rate_algorithm == RateAlgorithm.LOCAL_TOKEN_BUCKET

    @property
    def part_of_rate(self) -> Rate | None:
        """This worker's part of a rate that is divided; None before it has one."""
        if self.rate_limit is None or self.rate_period is None or not self.sharers:
            return None
        return Rate(limit=self.rate_limit, period=self.rate_period, burst=self.rate_burst).divided(self.sharers)


UNTOLD: Final = Control()
_TOLD: Final = (
    *("is_paused", "weight", "global_concurrency", "rate_limit", "rate_period", "rate_burst", "rate_algorithm", "sharers"),
    "concurrency_per_key",
    *RETRY,
)
_GLOBAL_CONCURRENCY: Final = _TOLD.index("global_concurrency")


@dataclass(frozen=True, slots=True, kw_only=True)
class Controls:
    """All of it at one moment. Two that say the same are equal but for their version, and a worker keeps the first."""

    version: int = 0
    """How often it has changed under this worker."""
    queues: Mapping[str, Control] = field(default_factory=dict)
    types: Mapping[str, Control] = field(default_factory=dict)
    concurrency: int | None = None
    """How many jobs this worker was asked to run at once; None: as many as it was started with."""

    def queue(self, name: str) -> Control:
        """Return what is said of a queue."""
        return self.queues.get(name, UNTOLD)

    def type(self, name: str) -> Control:
        """Return what is said of a job type."""
        return self.types.get(name, UNTOLD)

    def retry(self, queue: str) -> Backoff | None:
        """Return what is said of retries of a queue, or of a part: by its own row, or by its queue's."""
        return self.queue(queue).retry or self.queue(whole(queue)).retry

    @property
    def paused_queues(self) -> frozenset[str]:
        """The queues of which no job may be started."""
        return frozenset(name for name, told in self.queues.items() if told.is_paused)

    @property
    def paused_types(self) -> frozenset[str]:
        """The job types of which no job may be started."""
        return frozenset(name for name, told in self.types.items() if told.is_paused)

    @property
    def limited(self) -> tuple[frozenset[tuple[str, bool, bool]], ...]:
        """The queues and the job types that have limits, by name: across all workers, and divided among them."""
        every = [(name, told.is_limited, told.is_divided) for name, told in self.queues.items()]
        kinds = [(name, told.is_limited, told.is_divided) for name, told in self.types.items()]
        return tuple(frozenset(one for one in of if one[1] or one[2]) for of in (every, kinds))


class ControlReader(Component):
    """Reads what is said, and tells once of each change.

    A crash leaves the last reading in force. Woken by a notification and by its rest. Two may overlap, one a worker.
    """

    name = "control reader"

    def __init__(
        self,
        engine: AsyncEngine,
        model: type[JobMixin[Any]],
        *,
        worker_id: str,
        queues: list[str],
        types: list[str],
        on_change: Callable[[Controls], None],
        is_told: Callable[[], bool],
    ) -> None:
        self._engine = engine
        self._statement = compiled(controls.of_worker, model)
        self._parameters = {"worker_id": worker_id, "queues": queues, "types": types}
        self._on_change = on_change
        self._is_told = is_told
        self._woken = asyncio.Event()
        self.current = Controls()
        """The last reading. Replaced as a whole, and only when something changed: compare by identity."""

    def wake(self) -> None:
        """Read now: something may have changed."""
        self._woken.set()

    async def run(self) -> None:
        """Read until cancelled."""
        while True:
            self._woken.clear()  # before reading: what is told from here on ends the rest that follows
            await self.read()
            await asyncio.sleep(_PACE)
            try:
                async with asyncio.timeout(TOLD if self._is_told() else ALONE):
                    await self._woken.wait()
            except TimeoutError:
                pass

    async def read(self) -> None:
        """Read once; call `on_change` if anything is other than before."""
        async with self._engine.connect() as connection:
            rows = await self._statement.execute(connection, self._parameters)
        found: dict[str, dict[str, Control]] = {"queue": {}, "type": {}}
        concurrency = None
        for kind, name, *told in rows:
            if kind == "worker":
                concurrency = told[_GLOBAL_CONCURRENCY]
                continue
            found[kind][name] = Control(**dict(zip(_TOLD, told, strict=True)))
        before = self.current
        now = replace(before, queues=found["queue"], types=found["type"], concurrency=concurrency)
        if now != before:
            self.current = replace(now, version=before.version + 1)
            self._on_change(self.current)

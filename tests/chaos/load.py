"""Producers at a steady rate, and a note of every job whose commit was acknowledged."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from random import Random
from typing import Any, Final
from uuid import UUID

from sqlalchemy import Engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from sa_jobqueue import Job
from tests.chaos import application as app

_TICK_SECONDS: Final = 0.1
_LARGE: Final = "x" * (1024 * 1024 - 2)
"""With its quotes, the largest payload there may be."""


def _slow(random: Random) -> dict[str, Any]:
    return {"seconds": round(random.uniform(0.05, 1.2), 2)}


MIX: Final[tuple[tuple[int, Callable[[Random], Job]], ...]] = (
    (26, lambda _: app.plain.job({})),
    (4, lambda _: app.limited.job({})),
    (20, lambda _: app.with_session.job({})),
    (10, lambda _: app.with_async_session.job({})),
    (8, lambda random: app.slow.job(_slow(random))),
    (8, lambda random: app.slow_session.job(_slow(random))),
    (10, lambda _: app.link.job(app.LINKS)),
    (4, lambda _: app.fan_in.job(blockers=[app.link.job(1), app.link.job(2)])),
    (6, lambda _: app.fails_once.job({})),
    (2, lambda _: app.typed.job(app.Shape(1))),
)
"""The jobs that are enqueued, and how often relative to the rest."""


class Load:
    """Enqueues a seeded mix at `rate` jobs a second, from a thread, until it is stopped."""

    def __init__(self, engine: Engine, *, rate: float, seed: int) -> None:
        self._engine = engine
        self._rate = rate
        self._random = Random(seed)
        self._stop = threading.Event()
        self._acknowledged: set[UUID] = set()
        self._thread = threading.Thread(target=self._run, name="chaos producer", daemon=True)
        self.refused = 0
        """Transactions whose commit was not acknowledged; whether they are there, the database knows."""

    @property
    def acknowledged(self) -> set[UUID]:
        """The jobs whose enqueueing was acknowledged."""
        return set(self._acknowledged)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End, when the transaction under way has."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def add(self, *jobs: Job, refused: bool = False) -> bool:
        """Enqueue in one transaction; return whether its commit was acknowledged. `refused`: the end of the first is."""
        # A root's blockers are added with it; what a chain goes on with is noted by its root.
        ids = {job.id: job.type_name for job in jobs}
        try:
            with Session(self._engine) as session, session.begin():
                session.add_all(jobs)
                note = text("INSERT INTO enqueued (job_id, kind) VALUES (:job_id, :kind)")
                session.execute(note, [{"job_id": job_id, "kind": kind} for job_id, kind in ids.items()])
                if refused:
                    session.execute(text("INSERT INTO refused (job_id) VALUES (:job_id)"), {"job_id": jobs[0].id})
        except DBAPIError:
            self.refused += 1
            return False
        self._acknowledged.update(ids)
        return True

    def insist(self, make: Callable[[], Iterable[Job]], *, refused: bool = False) -> list[UUID]:
        """Enqueue the jobs of a fault, again while the server is away, as `add` does; return the ids."""
        while True:
            jobs = list(make())
            ids = [job.id for job in jobs]
            if self.add(*jobs, refused=refused):
                return ids
            time.sleep(_TICK_SECONDS)

    def _run(self) -> None:
        weights, makers = [weight for weight, _ in MIX], [make for _, make in MIX]
        owed = 0.0
        while not self._stop.wait(_TICK_SECONDS):
            owed += self._rate * _TICK_SECONDS
            count, owed = int(owed), owed - int(owed)
            if count:
                self.add(*(make(self._random) for make in self._random.choices(makers, weights, k=count)))


def poison() -> Job:
    """Return a job whose payload its handler's type refuses: as plain SQL or an older producer would enqueue it."""
    return Job("typed", {"number": "not a number"}, _handler=None)


def large() -> Job:
    """Return a job with the largest payload there may be."""
    return app.large.job(_LARGE)

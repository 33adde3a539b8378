"""The run of the demo, from the first enqueue to the end of the last job."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from sqlalchemy import Engine, func, select
from sqlalchemy.orm import Session

from sa_jobqueue.cli.demo.app import CountFile, Job, SourceFile, count_file
from sa_jobqueue.cli.demo.progress import Progress
from sa_jobqueue.cli.demo.workers import Workers
from sa_jobqueue.errors import JobQueueError
from sa_jobqueue.types import ENDED, JobStatus

CHUNK: Final = 200
"""Files enqueued in one transaction."""

_FAST_POLL: Final = timedelta(milliseconds=5)
"""Poll interval until a worker is killed: a short run takes only a few hundred milliseconds."""
_POLL: Final = timedelta(milliseconds=100)
_STALLED: Final = timedelta(seconds=60)


class StalledError(JobQueueError):
    """No job ended for a minute, and some have not ended."""


@dataclass(frozen=True, slots=True)
class Victim:
    """A killed worker: its process id, its worker id, and the number of jobs it was running."""

    pid: int
    worker_id: str
    jobs: int


def enqueue(engine: Engine, paths: Sequence[str], progress: Progress) -> None:
    """Record every file and enqueue its job, `CHUNK` files per transaction."""
    with progress.bar("enqueued", len(paths)) as bar:
        for start in range(0, len(paths), CHUNK):
            with Session(engine) as session, session.begin():
                session.add_all(
                    SourceFile(path=path, job=count_file.job(CountFile(path))) for path in paths[start : start + CHUNK]
                )
            bar.advance_to(min(start + CHUNK, len(paths)))


def work(engine: Engine, workers: Workers, total: int, progress: Progress) -> Victim | None:
    """Wait until every job has ended, and kill one worker meanwhile; return it, or None if none was killed.

    Raises: WorkerDiedError if another worker exits; StalledError.
    """
    victim: Victim | None = None
    seen, changed = 0, time.monotonic()
    with progress.bar("ended", total) as bar:
        while True:
            with Session(engine) as session:
                ended = session.scalar(select(func.count()).where(Job.status.in_(ENDED))) or 0
            bar.advance_to(ended)
            if ended != seen:
                seen, changed = ended, time.monotonic()
            if ended >= total:
                return victim
            if time.monotonic() - changed > _STALLED.total_seconds():
                raise StalledError(f"no job ended for {_STALLED.seconds} s; {total - ended} have not ended")
            workers.check()
            if victim is None and ended >= total // 10:
                victim = _kill_one(engine, workers)
                if victim is not None:
                    replacement = workers.start()
                    progress.say(
                        f"killed worker {victim.pid} (SIGKILL) while it ran {victim.jobs} jobs; "
                        f"started worker {replacement} in its place"
                    )
            time.sleep((_FAST_POLL if victim is None else _POLL).total_seconds())


def _kill_one(engine: Engine, workers: Workers) -> Victim | None:
    """Kill the worker that runs the most jobs; None if none certainly runs one."""
    running = (
        select(Job.Worker.pid, Job.Worker.id, func.count())
        .join(Job, Job.leased_by == Job.Worker.id)
        .where(Job.status == JobStatus.RUNNING, Job.Worker.pid.in_(workers.pids))
        .group_by(Job.Worker.pid, Job.Worker.id)
        .order_by(func.count().desc())
    )
    with Session(engine) as session:
        found = session.execute(running.limit(1)).one_or_none()
    if found is None:
        return None
    pid, worker_id, held = found

    def holds_jobs() -> bool:
        nonlocal held
        with Session(engine) as session:
            count = select(func.count()).where(Job.status == JobStatus.RUNNING, Job.leased_by == worker_id)
            held = session.scalar(count) or 0
        return held > 0

    return Victim(pid, worker_id, held) if workers.kill(pid, holds_jobs=holds_jobs) else None

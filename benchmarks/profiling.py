"""Where a job's microseconds go: in the worker by whose code ran, in the server, and in `pgbench` doing the same."""

from __future__ import annotations

import signal
from collections import Counter
from types import FrameType
from typing import Any, Final

from benchmarks import pgbench, rows, workers
from benchmarks.meter import Stopwatch
from benchmarks.place import Place, open_place
from benchmarks.scenarios import drain
from sa_jobqueue import JobQueue
from sa_jobqueue.testing.servers import PostgresServer

_EVERY: Final = 0.001
_OWNERS: Final = {
    "psycopg": "driver (psycopg)",
    "psycopg_binary": "driver (psycopg)",
    "sqlalchemy": "SQLAlchemy",
    "asyncio": "event loop",
    "uvloop": "event loop",
    "selectors": "event loop",
    "sa_jobqueue": "queue",
    "benchmarks": "handler and harness",
}


class Samples(Stopwatch):
    """Counts whose code ran, as often as the system's clock allows, while it measures; in the main thread.

    The standard library's time is its caller's, and that of compiled code is the frame's that called it.
    """

    def __init__(self, server_pid: int | None) -> None:
        super().__init__(server_pid)
        self.owners: Counter[str] = Counter()
        self.modules: Counter[str] = Counter()

    def start(self) -> None:
        """Begin to measure and to take samples."""
        signal.signal(signal.SIGPROF, self._take)
        signal.setitimer(signal.ITIMER_PROF, _EVERY, _EVERY)
        super().start()

    def stop(self) -> None:
        """End both."""
        super().stop()
        signal.setitimer(signal.ITIMER_PROF, 0.0)

    def _take(self, signum: int, frame: FrameType | None) -> None:
        while frame is not None:
            module = frame.f_globals.get("__name__", "")
            owner = _OWNERS.get(module.partition(".")[0])
            if owner is not None:
                self.owners[owner] += 1
                if owner == "queue":
                    self.modules[module.removeprefix("sa_jobqueue.")] += 1
                return
            frame = frame.f_back
        self.owners["other"] += 1


def profile(server: PostgresServer, jobs: int) -> dict[str, Any]:
    """Drain so many jobs in this process, and by `pgbench`; return microseconds a job, the largest first."""
    with open_place(server) as place:
        rows.fill(place, jobs)
        samples = Samples(place.server_pid)
        job_count = workers.drain(place, samples, jobs, _queue(), concurrency=pgbench.BATCH)
        limit = _limit(place, jobs)
    client, total = samples.client_cpu / job_count * 1e6, max(1, sum(samples.owners.values()))
    return {
        "jobs": job_count,
        "client_us": client,
        "client": {name: count / total * client for name, count in samples.owners.most_common()},
        "queue": {name: count / total * client for name, count in samples.modules.most_common(8)},
        "server_us": samples.server_cpu / job_count * 1e6,
        "pgbench": limit,
    }


def _limit(place: Place, jobs: int) -> dict[str, float]:
    rows.fill(place, jobs)
    watch = Stopwatch(place.server_pid)
    job_count = drain.pgbench_run(1)(place, watch, jobs)
    return {"client_us": watch.client_cpu / job_count * 1e6, "server_us": watch.server_cpu / job_count * 1e6}


def _queue() -> JobQueue:
    queue = JobQueue()

    @queue.handler(rows.JOB_TYPE)
    async def handle(order: Any) -> None:
        return None

    return queue

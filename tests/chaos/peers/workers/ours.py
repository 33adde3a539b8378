"""This queue: `sa-jobqueue worker` with the times of the chaos run beside it, and an AsyncSession that adds and commits."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import cast

from sqlalchemy import create_engine, make_url
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from sa_jobqueue import Backoff, JobQueue
from tests.chaos.peers import application as app

jobs = JobQueue()


@jobs.handler("handle", max_attempts=app.ATTEMPTS, retry=Backoff(base=timedelta(milliseconds=200), cap=timedelta(seconds=1)))
async def handle(payload: dict[str, object]) -> None:
    """Run it."""
    await app.handle(cast("app.Work", payload))


class Ours(app.System):
    """A worker as the command line runs it."""

    def __init__(self, url: str) -> None:
        super().__init__(make_url(url).set(drivername="postgresql+psycopg").render_as_string(hide_password=False))

    async def setup(self) -> None:
        """Migrate."""
        from sa_jobqueue.migrations import runner

        engine = create_engine(self.url)
        with engine.begin() as connection:
            runner.upgrade(connection)
        engine.dispose()

    @asynccontextmanager
    async def producer(self) -> AsyncIterator[app.Put]:
        """Add and commit one by one."""
        engine = create_async_engine(self.url)
        try:

            async def put(work: app.Work) -> None:
                async with AsyncSession(engine) as session, session.begin():
                    session.add(handle.job(dict(work)))

            yield put
        finally:
            await engine.dispose()

    async def work(self) -> None:
        """Become `sa-jobqueue worker`."""
        times = {
            "beat-interval": app.BEAT,
            "time-to-live": app.PATIENCE,
            "sweep-interval": app.BEAT,
            "poll-interval": app.BEAT,
            "drain-timeout": app.DRAIN,
            "concurrency": app.CONCURRENCY,
            "control-fd": os.environ["CHAOS_CONTROL_FD"],
        }
        arguments = [part for name, value in times.items() for part in (f"--{name}", str(value))]
        command = [sys.executable, "-m", "sa_jobqueue", "worker", "tests.chaos.peers.workers.ours:jobs", *arguments]
        os.execve(sys.executable, command, os.environ | {"SA_JOBQUEUE_URL": self.url})


if __name__ == "__main__":
    app.main(Ours)

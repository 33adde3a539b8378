"""This queue: what `sa-jobqueue worker` runs, and an AsyncSession that adds and commits."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import cast

from sqlalchemy import create_engine, make_url
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from benchmarks.chaos import application as app
from sa_jobqueue import Backoff, JobQueue

jobs = JobQueue()


@jobs.handler("handle", max_attempts=app.ATTEMPTS, retry=Backoff(base=timedelta(milliseconds=200), cap=timedelta(seconds=1)))
async def handle(payload: dict[str, object]) -> None:
    """Run it."""
    await app.handle(cast("app.Work", payload))


class Ours(app.System):
    """Only the producer's side is run as a script."""

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
        """Do not run here: `sa-jobqueue worker` does, as users have it. Raises: NotImplementedError."""
        raise NotImplementedError


if __name__ == "__main__":
    app.main(Ours)

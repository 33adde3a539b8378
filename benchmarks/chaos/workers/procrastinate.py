"""Procrastinate, with the periodic task that retries stalled jobs from its guide to production."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from procrastinate import App, PsycopgConnector, RetryStrategy

from benchmarks.chaos import application as app


class Procrastinate(app.System):
    """`PsycopgConnector`; heartbeats, stalled after, polling and graceful timeout as short as the others'."""

    def _app(self) -> Any:
        found = App(connector=PsycopgConnector(conninfo=self.url))

        async def handle(**work: Any) -> None:
            await app.handle(app.Work(**work))  # type: ignore[typeddict-item]

        async def retry_stalled_jobs(context: Any, timestamp: int) -> None:
            for job in await found.job_manager.get_stalled_jobs(seconds_since_heartbeat=app.PATIENCE):
                await found.job_manager.retry_job(job)

        found.task(name="handle", retry=RetryStrategy(max_attempts=app.ATTEMPTS, wait=1))(handle)
        # Its guide runs this every ten minutes; here it is every second.
        retry = found.task(name="retry_stalled_jobs", queueing_lock="retry_stalled_jobs", pass_context=True)
        found.periodic(cron="* * * * * */1")(retry(retry_stalled_jobs))
        return found

    async def setup(self) -> None:
        """Apply its schema."""
        async with self._app().open_async() as opened:
            await opened.schema_manager.apply_schema_async()

    @asynccontextmanager
    async def producer(self) -> AsyncIterator[app.Put]:
        """Defer one by one."""
        async with self._app().open_async() as opened:
            deferrer = opened.configure_task("handle", allow_unknown=True)
            yield lambda work: deferrer.defer_async(**work)

    async def work(self) -> None:
        """Run its worker."""
        async with self._app().open_async() as opened:
            await opened.run_worker_async(
                concurrency=app.CONCURRENCY,
                fetch_job_polling_interval=app.BEAT,
                update_heartbeat_interval=app.BEAT,
                stalled_worker_timeout=app.PATIENCE,
                shutdown_graceful_timeout=app.DRAIN,
            )


if __name__ == "__main__":
    app.main(Procrastinate)

"""A worker in the process of a Starlette application.

    worker = Worker(jobs, engine)
    app = Starlette(routes=health_routes(worker), lifespan=worker_lifespan(worker))

In a lifespan of your own write `async with running(worker):`, from `sa_jobqueue.integrations.embedding`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from sa_jobqueue.integrations.embedding import running
from sa_jobqueue.observe.probes import DEFAULT_LIMIT, PATHS, answer
from sa_jobqueue.worker import Worker

__all__ = ["health_routes", "worker_lifespan"]


def worker_lifespan(worker: Worker) -> Callable[[Any], AbstractAsyncContextManager[None]]:
    """Return a lifespan for an application: it runs `worker` as `running` does, from start-up to shutdown."""

    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[None]:
        async with running(worker):
            yield

    return lifespan


def health_routes(worker: Worker, *, limit: timedelta = DEFAULT_LIMIT) -> list[Route]:
    """Return the routes `/livez` and `/readyz`: 200, or 503 with the causes in a JSON document.

    `/livez` fails when a component of the worker has been stuck for half of `limit`, 5 minutes unless given: restart the
    process. `/readyz` fails while the worker cannot start jobs: it starts, drains or has stopped, or the database is away.
    `worker`: the worker that runs in this process.
    """

    return [Route(path, _probe(path, worker, limit), include_in_schema=False) for path in PATHS]


def _probe(path: str, worker: Worker, limit: timedelta) -> Callable[[Request], Awaitable[Response]]:
    async def probe(request: Request) -> Response:
        status, document = answer(path, worker.vitals, limit)
        return JSONResponse(document, status)

    return probe

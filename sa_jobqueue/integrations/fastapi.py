"""A worker in the process of a FastAPI application.

    worker = Worker(jobs, engine)
    app = FastAPI(lifespan=worker_lifespan(worker))
    app.include_router(health_router(worker))

In a lifespan of your own write `async with running(worker):`, from `sa_jobqueue.integrations.embedding`.
"""

from __future__ import annotations

from datetime import timedelta

from fastapi import APIRouter

from sa_jobqueue.integrations.starlette import health_routes, worker_lifespan
from sa_jobqueue.observe.probes import DEFAULT_LIMIT
from sa_jobqueue.worker import Worker

__all__ = ["health_router", "worker_lifespan"]


def health_router(worker: Worker, *, limit: timedelta = DEFAULT_LIMIT) -> APIRouter:
    """Return a router with `/livez` and `/readyz`, as `starlette.health_routes`; they are not in the OpenAPI schema."""
    return APIRouter(routes=list(health_routes(worker, limit=limit)))

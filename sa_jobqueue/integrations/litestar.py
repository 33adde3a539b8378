"""A worker in the process of a Litestar application: `Litestar(plugins=[JobQueuePlugin(Worker(jobs, engine))])`."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from litestar import Response, get
from litestar.config.app import AppConfig
from litestar.plugins import InitPlugin

from sa_jobqueue.integrations.embedding import running
from sa_jobqueue.observe.probes import DEFAULT_LIMIT, PATHS, answer
from sa_jobqueue.worker import Worker

__all__ = ["JobQueuePlugin"]


class JobQueuePlugin(InitPlugin):
    """Runs a worker from start-up to shutdown, as `embedding.running`, and answers probes.

    `worker`: the worker to run. `health`: whether to add `/livez` and `/readyz`, as in `starlette.health_routes`. `limit`:
    as there.
    """

    def __init__(self, worker: Worker, *, health: bool = True, limit: timedelta = DEFAULT_LIMIT) -> None:
        self._worker = worker
        self._health = health
        self._limit = limit

    def on_app_init(self, app_config: AppConfig) -> AppConfig:
        """Add the lifespan and the routes to `app_config` and return it. Called by Litestar."""
        app_config.lifespan.append(lambda _: running(self._worker))
        if self._health:
            app_config.route_handlers += [self._probe(path) for path in PATHS]
        return app_config

    def _probe(self, path: str) -> Any:
        @get(path, include_in_schema=False, sync_to_thread=False, name=f"sa_jobqueue{path}")
        def probe() -> Response[dict[str, Any]]:
            status, document = answer(path, self._worker.vitals, self._limit)
            return Response(document, status_code=status)

        return probe

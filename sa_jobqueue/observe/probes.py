"""`/livez` and `/readyz` for probes of orchestrators: whether a worker is alive, and whether it can start jobs."""

from __future__ import annotations

from datetime import timedelta
from http import HTTPStatus
from typing import Any, Final

from sa_jobqueue.worker.background.vitals import Vitals

PATHS: Final = ("/livez", "/readyz")
DEFAULT_LIMIT: Final = timedelta(minutes=5)
"""Time after which a component that makes no progress counts as failed."""


def answer(path: str, vitals: Vitals, limit: timedelta = DEFAULT_LIMIT) -> tuple[HTTPStatus, dict[str, Any]]:
    """Return the answer to a request. Pure.

    `limit`: the watchdog's limit; `/livez` fails after half of it. 0: as with the default limit.
    """
    after = (limit or DEFAULT_LIMIT) / 2
    causes = [f"the {part.name} has been stuck for {part.silent.total_seconds():.1f} s" for part in vitals.stuck(after)]
    match path.partition("?")[0]:
        case "/livez":
            pass
        case "/readyz":
            causes += vitals.unready
        case _:
            return HTTPStatus.NOT_FOUND, {"status": "not found", "paths": list(PATHS)}
    document = {
        "status": "failing" if causes else "ok",
        "causes": causes,
        "phase": vitals.phase.value,
        "listening": vitals.is_listening,
        "silent_seconds": {part.name: round(part.silent.total_seconds(), 3) for part in vitals.parts},
    }
    return HTTPStatus.SERVICE_UNAVAILABLE if causes else HTTPStatus.OK, document

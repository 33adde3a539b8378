"""A steady load, watched: what each of its seconds was like for those who wait, for the claim, and for vacuum."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from benchmarks.statements import Statements

_VACUUM_EVERY: Final = 2
_HORIZON: Final = (
    "SELECT extract(epoch FROM clock_timestamp() - min(xact_start)) FROM pg_stat_activity"
    " WHERE datname = current_database() AND backend_xid IS NOT NULL"
)


@dataclass(frozen=True, slots=True)
class Observation:
    """The state at one moment."""

    at: float
    claims: float
    claim_ms: float
    dead: float
    horizon: float
    """Seconds for which the oldest transaction that wrote has been open: so long ago died what vacuum cannot remove yet."""


def watch(
    claim_like: str, statements: Statements | None, over: threading.Event, observations: list[Observation], scale: float
) -> None:
    """Look once a second, and vacuum the database every other time, as an autovacuum would that keeps up; until it is over.

    `scale`: seconds that count as one.
    """
    if statements is None:
        return
    number = 0
    while not over.wait(scale):
        number += 1
        if number % _VACUUM_EVERY == 0:
            statements.run("VACUUM")
        calls = statements.read(claim_like)
        dead = statements.scalar("SELECT sum(n_dead_tup) FROM pg_stat_user_tables")
        horizon = statements.scalar(_HORIZON)
        observations.append(
            Observation(time.monotonic(), calls.count, calls.milliseconds, float(dead or 0), float(horizon or 0))
        )


def series(
    began: float,
    observations: list[Observation],
    *,
    scale: float,
    seconds: int,
    committed: Mapping[int, float],
    started: Mapping[int, float],
) -> list[dict[str, float | None]]:
    """Return what each second was like: jobs waiting at its end, the median wait of those begun in it, its claims."""
    figures_by_second: list[dict[str, float | None]] = []
    for second in range(seconds):
        first, last = (began + edge * scale for edge in (second, second + 1))
        waits = [
            (at - committed[number]) * 1000 for number, at in started.items() if first <= at < last and number in committed
        ]
        enqueued = sum(at < last for at in committed.values())
        begun = sum(at < last for number, at in started.items() if number in committed)
        following = next((observation for observation in observations if observation.at >= last), None)
        figures_by_second.append(
            {
                "second": float(second),
                "depth": float(max(0, enqueued - begun)),
                "wait_ms": statistics.median(waits) if waits else None,
                "started": float(len(waits)),
                "claim_ms": _claim_ms(observations, first, last),
                "dead": None if following is None else following.dead,
                "horizon_seconds": None if following is None else following.horizon,
            }
        )
    return figures_by_second


def _claim_ms(observations: list[Observation], first: float, last: float) -> float | None:
    inside = [observation for observation in observations if first - 1.5 * (last - first) <= observation.at < last]
    if len(inside) < 2 or inside[-1].claims == inside[0].claims:
        return None
    return (inside[-1].claim_ms - inside[0].claim_ms) / (inside[-1].claims - inside[0].claims)

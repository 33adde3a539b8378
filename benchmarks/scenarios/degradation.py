"""The test of Brandur Leach and of PlanetScale: a steady load while a transaction elsewhere keeps vacuum from its work.

A transaction is opened after a while, and later closed. What counts is whether a claim takes longer and longer while it is
open, whether jobs pile up then, and whether both recover. A vacuum of the whole database runs every other second, as with an
autovacuum that keeps up: while the transaction is open, it can remove nothing.
Source: https://brandur.org/postgres-queues, https://planetscale.com/blog/keeping-a-postgres-queue-healthy
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Mapping
from typing import Final

from benchmarks import steady, systems
from benchmarks.harness import Scenario
from benchmarks.meter import Stopwatch
from benchmarks.peers import running
from benchmarks.peers.catalogue import System
from benchmarks.place import Place
from benchmarks.scenarios import pins
from benchmarks.scenarios.peers_latency import stamps
from benchmarks.statements import counting

RATE: Final = 600
_OFF_SECONDS: Final = 6
_ON_SECONDS: Final = 30
_AFTER_SECONDS: Final = 9
PINNED: Final = (_OFF_SECONDS, _OFF_SECONDS + _ON_SECONDS)
SECONDS: Final = _OFF_SECONDS + _ON_SECONDS + _AFTER_SECONDS
_LEFT_OUT: Final = {"pgqueuer, psycopg"}
"""The same SQL as over asyncpg, and half a minute more."""


def scenario() -> Scenario:
    """Return the cases."""
    return Scenario(
        name="degradation",
        says=f"{RATE} jobs/s; a transaction holds the horizon from second {_OFF_SECONDS} to {_OFF_SECONDS + _ON_SECONDS}",
        cases=systems.cases(
            _sustain,
            most=lambda system: RATE * SECONDS,
            rated=False,
            rounds=1,
            is_measured=lambda system: not system.is_elsewhere and system.name not in _LEFT_OUT,
        ),
        jobs=RATE * SECONDS,
    )


def _sustain(system: System, place: Place, watch: Stopwatch, jobs: int) -> int:
    scale = jobs / (RATE * SECONDS)
    over, looks = threading.Event(), list[steady.Observation]()
    with (
        counting(place) as statements,
        running.working(system, place, jobs=10**9, stamps=True) as worker,
        running.start(system, place, do="produce", jobs=jobs, rate=RATE) as producer,
    ):
        producer.expect("ready")
        watch.beside = lambda: [worker.pid, producer.pid]
        watch.round_trips = None
        watcher = threading.Thread(target=steady.watch, args=(system.claim_like, statements, over, looks, scale))
        watcher.start()
        began = time.monotonic()
        with watch:
            producer.send("go")
            time.sleep(_OFF_SECONDS * scale)
            with pins.writer(place):
                time.sleep(_ON_SECONDS * scale)
            time.sleep(max(0.0, began + SECONDS * scale - time.monotonic()))
        over.set()
        watcher.join()
        producer.send("stop")
        worker.send("stop")
        committed, started = (stamps(process.expect("told")) for process in (producer, worker))
    watch.series = steady.series(began, looks, scale=scale, seconds=SECONDS, committed=committed, started=started)
    during = [second for second in watch.series if _is_pinned(second)]
    watch.figures = _figures([second for second in watch.series if second not in during], during)
    return len([number for number in started if number >= 0])


def _is_pinned(second: Mapping[str, float | None]) -> bool:
    return _OFF_SECONDS <= (second["second"] or 0) < _OFF_SECONDS + _ON_SECONDS


def _figures(off: list[dict[str, float | None]], on: list[dict[str, float | None]]) -> dict[str, float]:
    """Return the figures of the claim and the queue before the transaction, and in its last third."""
    before = [second for second in off if (second["second"] or 0) < _OFF_SECONDS]
    late = on[-max(1, len(on) // 3) :]
    after = off[-3:]
    figures = {}
    for when, seconds_of_phase in (("before", before), ("pinned", late), ("after", after)):
        for name in ("claim_ms", "wait_ms"):
            values = [value for second in seconds_of_phase if (value := second[name]) is not None]
            if values:
                figures[f"{name.removesuffix('_ms')}_{when}_ms"] = statistics.median(values)
    figures["deepest"] = max(second["depth"] or 0 for second in on)
    figures["depth_at_the_end"] = after[-1]["depth"] or 0
    figures["dead"] = max((second["dead"] or 0 for second in on), default=0)
    return figures

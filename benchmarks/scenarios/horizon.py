"""The cost of a claim while a transaction somewhere keeps vacuum and index cleaning from removing dead rows.

A plain indexed claim walks the dead index entries of every job done since that transaction began; ours starts at its
floor. Both claim one job at a time from the same table, and commit each claim without waiting for the disk, for it is
the claim that is measured.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any, Final

from sqlalchemy import Connection, text

from benchmarks import pgbench, rows
from benchmarks.harness import Case, Comparison, Scenario, percentile
from benchmarks.meter import Stopwatch
from benchmarks.place import Place
from sa_jobqueue import Job
from sa_jobqueue.statements import claims
from sa_jobqueue.statements.claims import GUARDS
from sa_jobqueue.types import MAX_PRIORITY, MIN_PRIORITY
from sa_jobqueue.worker.floors import Floors, Lane

_CLAIMS: Final = 200
_WARM: Final = 10
"""Claims before those measured: the driver prepares a statement when it has run a few times."""
_CHURN_BATCH: Final = 500
_DEPTHS: Final = (20_000, 100_000)

_PLAIN: Final = text(
    "UPDATE job SET status = 'running', attempt = attempt + 1, started_at = now(), leased_by = :worker_id,"
    " changed_xid = pg_current_xact_id() WHERE id = ANY (ARRAY(SELECT id FROM job WHERE status = 'pending'"
    " AND priority >= '-9' AND queue = 'default' AND priority = 0 AND scheduled_at <= now()"
    " ORDER BY scheduled_at, id LIMIT 1 FOR UPDATE SKIP LOCKED)) RETURNING id, type_name, input, attempt, scheduled_at"
)


def scenario() -> Scenario:
    """Return the cases: at each depth of dead jobs ours, then the plain claim."""
    pinned = Pinned()
    cases = []
    for depth in (0, *_DEPTHS):
        for kind, run in (("ours", pinned.run_ours), ("plain", pinned.run_plain)):
            case = f"{kind}, {depth:,} dead" if depth else f"{kind}, not pinned"
            against = Comparison(case=f"{kind}, not pinned", figure="p50_ms") if depth else None
            prepare = pinned.at(depth)
            cases.append(Case(name=case, run=run, prepare=prepare, against=against, rated=False, most=10_000))
    return Scenario(
        name="pinned horizon",
        says="claims of one job, their median time against that without a pin; --jobs below 10,000 makes fewer dead",
        cases=cases,
    )


class Pinned:
    """Holds the pin between the cases of one round, and counts what died behind it."""

    def __init__(self) -> None:
        self._pin: Connection | None = None
        self._dead = 0

    def at(self, depth: int) -> Callable[[Place, int], None]:
        """Return what brings the place to so many dead jobs behind a pin; 0 starts anew without one."""

        def prepare(place: Place, jobs: int) -> None:
            wanted = depth * jobs // 10_000
            if wanted == 0 or wanted < self._dead:
                self._release(place)
                place.clear()
            elif self._pin is None:
                self._begin(place)
            if wanted > self._dead:
                _churn(place, wanted - self._dead)
                self._dead = wanted
            with place.begin() as connection:
                rows.copy(connection, 2 * _CLAIMS)

        return prepare

    def run_ours(self, place: Place, watch: Stopwatch, jobs: int) -> int:
        """Claim one job at a time as a worker does that has been running for a while."""
        priorities = range(MAX_PRIORITY, MIN_PRIORITY - 1, -1)
        floors = Floors([Lane("default", one) for one in priorities], rows.LOWEST_ID)
        fixed: dict[str, Any] = {"types": [rows.JOB_TYPE], "limit": 1, "worker_id": pgbench.WORKER, "grace": rows.GRACE}
        waits = []
        with _connect(place) as connection:

            def claim() -> float:
                changed = floors.prepare(time.monotonic(), idle=False)
                parameters = floors.parameters(changed=changed) | fixed
                began = time.monotonic()
                found = connection.execute(claims.claim(Job, changed=changed), parameters).all()
                took = time.monotonic() - began
                taken = [(row.queue, row.priority, row.scheduled_at, row.id) for row in found if row.id is not None]
                floors.advance(
                    taken,
                    limit=1,
                    changed=changed,
                    database_now=found[0].now,
                    snapshot=(found[0].xmax, found[0].xip),
                    started=began,
                    now=time.monotonic(),
                )
                return took * len(taken)

            for _ in range(_WARM):  # the first one walks its lanes from the start, as a worker's first one does
                claim()
            with watch:
                waits = [claim() for _ in range(_CLAIMS)]
            for changed in (False, True):
                name = "buffers_behind" if changed else "buffers"
                parameters = floors.parameters(changed=changed) | fixed
                watch.figures[name] = _buffers(connection, claims.claim(Job, changed=changed), parameters)
        watch.figures["dead"] = self._dead
        return _told(watch, waits)

    def run_plain(self, place: Place, watch: Stopwatch, jobs: int) -> int:
        """Claim one job at a time by the index, from its start."""
        parameters = {"worker_id": pgbench.WORKER}
        waits = []
        with _connect(place) as connection:
            for _ in range(_WARM):
                connection.execute(_PLAIN, parameters)
            with watch:
                for _ in range(_CLAIMS):
                    began = time.monotonic()
                    connection.execute(_PLAIN, parameters).all()
                    waits.append(time.monotonic() - began)
            watch.figures["buffers"] = _buffers(connection, _PLAIN, parameters)
        watch.figures["dead"] = self._dead
        return _told(watch, waits)

    def _begin(self, place: Place) -> None:
        self._pin = place.engine(isolation_level="REPEATABLE READ").connect()
        self._pin.execute(text("SELECT count(*) FROM pg_class"))
        place.held = 1

    def _release(self, place: Place) -> None:
        if self._pin is not None:
            self._pin.close()
        self._pin, self._dead, place.held = None, 0, 0


def _churn(place: Place, jobs: int) -> None:
    with place.begin() as connection:
        rows.copy(connection, jobs)
    batches = -(-jobs // _CHURN_BATCH) + 1
    script = pgbench.claim() + pgbench.complete()
    pgbench.run(place, Stopwatch(None), script, transactions=batches, batch=_CHURN_BATCH)


def _connect(place: Place) -> Connection:
    guards = " ".join(f"-c {name}={value}" for name, value in GUARDS.items())
    options = f"{guards} -c synchronous_commit=off"
    return place.engine(isolation_level="AUTOCOMMIT", connect_args={"options": options}).connect()


def _told(watch: Stopwatch, waits: list[float]) -> int:
    watch.figures |= {f"p{percent}_ms": percentile(waits, percent) * 1000 for percent in (50, 99)}
    return _CLAIMS


def _buffers(connection: Connection, statement: Any, parameters: dict[str, Any]) -> float:
    compiled = statement.compile(dialect=connection.dialect)
    explain = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {compiled}"
    plan = connection.exec_driver_sql(explain, compiled.construct_params(parameters)).scalar_one()
    if isinstance(plan, str):
        plan = json.loads(plan)
    return float(plan[0]["Plan"]["Shared Hit Blocks"] + plan[0]["Plan"]["Shared Read Blocks"])

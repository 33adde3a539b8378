"""The cost of a claim while a transaction somewhere keeps vacuum and index cleaning from removing dead rows.

A plain indexed claim walks the dead index entries of every job done since that transaction began; ours starts at its
cursor. Both claim one job at a time from the same table, and commit each claim without waiting for the disk, for it is
the claim that is measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from sqlalchemy import Connection, text

from benchmarks import claiming, pgbench, rows
from benchmarks.harness import Case, Comparison, Scenario
from benchmarks.meter import Stopwatch
from benchmarks.place import Place

_CHURN_BATCH: Final = 500
_DEPTHS: Final = (20_000, 100_000)
_DEEPEST: Final = 500_000
"""Once a run: making so many takes a while."""

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
    for depth in (0, *_DEPTHS, _DEEPEST):
        for kind, run in (("ours", pinned.run_ours), ("plain", pinned.run_plain)):
            case = f"{kind}, {depth:,} dead" if depth else f"{kind}, not held back"
            against = Comparison(case=f"{kind}, not held back", figure="p50_ms") if depth else None
            prepare = pinned.at(depth)
            rounds = 1 if depth == _DEEPEST else 1_000
            cases.append(
                Case(name=case, run=run, prepare=prepare, against=against, rated=False, most=10_000, most_rounds=rounds)
            )
    return Scenario(
        name="held-back horizon",
        says="claims of one job, their median time against that without dead rows; --jobs below 10,000 makes fewer of them",
        cases=cases,
        close=pinned.release,
    )


class Pinned:
    """Holds a transaction open between the cases of one round, and counts the dead rows that it holds back."""

    def __init__(self) -> None:
        self._pin: Connection | None = None
        self._dead = 0

    def at(self, depth: int) -> Callable[[Place, int], None]:
        """Return what prepares so many dead rows behind an open transaction; 0 starts again without one."""

        def prepare(place: Place, jobs: int) -> None:
            dead_rows = depth * jobs // 10_000
            if dead_rows == 0 or dead_rows < self._dead:
                self.release()
                place.held = 0
                place.clear()
            elif self._pin is None:
                self._begin(place)
            if dead_rows > self._dead:
                churn(place, dead_rows - self._dead)
                self._dead = dead_rows
            with place.begin() as connection:
                rows.copy(connection, 2 * claiming.CLAIMS)

        return prepare

    def release(self) -> None:
        """Close the transaction, if there is one."""
        if self._pin is not None:
            self._pin.close()
        self._pin, self._dead = None, 0

    def run_ours(self, place: Place, watch: Stopwatch, jobs: int) -> int:
        """Claim one job at a time as a worker does that has been running for a while."""
        claiming.claim_one_at_a_time(place, watch)
        watch.figures["dead"] = self._dead
        return claiming.CLAIMS

    def run_plain(self, place: Place, watch: Stopwatch, jobs: int) -> int:
        """Claim one job at a time by the index, from its start."""
        parameters = {"worker_id": pgbench.WORKER}
        waits = []
        with claiming.connect(place) as connection:
            for _ in range(10):
                connection.execute(_PLAIN, parameters)
            with watch:
                for _ in range(claiming.CLAIMS):
                    began = time.monotonic()
                    connection.execute(_PLAIN, parameters).all()
                    waits.append(time.monotonic() - began)
            watch.figures["buffers"] = claiming.buffers(connection, _PLAIN, parameters)
        watch.figures["dead"] = self._dead
        return claiming.report(watch, waits)

    def _begin(self, place: Place) -> None:
        self._pin = place.engine(isolation_level="REPEATABLE READ").connect()
        self._pin.execute(text("SELECT count(*) FROM pg_class"))
        place.held = 1


def churn(place: Place, jobs: int) -> None:
    with place.begin() as connection:
        rows.copy(connection, jobs)
    batches = -(-jobs // _CHURN_BATCH) + 1
    script = pgbench.claim() + pgbench.complete()
    pgbench.run(place, Stopwatch(None), script, transactions=batches, batch=_CHURN_BATCH)

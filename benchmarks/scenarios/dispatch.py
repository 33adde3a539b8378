"""The cost of a second table: a narrow one, in which one process lays out in which order jobs are to start.

It has the form that costs least: two columns and one index, rows moved and deleted a hundred at a time, nothing marked in
the job table, for the process that moves remembers how far it has come. Late commits, retries and its own restart are left
out; a system would have to pay for them as well.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from sqlalchemy import Connection, text

from benchmarks import claiming, pgbench, rows
from benchmarks.harness import Case, Comparison, Scenario
from benchmarks.meter import Stopwatch
from benchmarks.place import Place
from benchmarks.scenarios import pins

_PLANNED: Final = "planned in the worker"
_CALM: Final = "a claim from the second table, not held back"
_DEAD: Final = 100_000

_TABLE: Final = "CREATE TABLE dispatch (position bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, job_id uuid NOT NULL)"

_MOVE: Final = """
WITH next AS MATERIALIZED (
  SELECT id, scheduled_at FROM job WHERE status = 'pending' AND priority >= '-9' AND queue = 'default' AND priority = 0
  AND scheduled_at <= now()
  AND (scheduled_at, id) > ((CAST(:cursor_at AS timestamptz[]))[1], (CAST(:cursor_id AS uuid[]))[1])
  ORDER BY scheduled_at, id LIMIT :limit
), moved AS (INSERT INTO dispatch (job_id) SELECT id FROM next ORDER BY scheduled_at, id)
SELECT array_agg(scheduled_at ORDER BY scheduled_at DESC, id DESC) AS cursor_at,
  array_agg(id ORDER BY scheduled_at DESC, id DESC) AS cursor_id FROM next
\\gset
"""

_CLAIM: Final = """
WITH next AS (
  DELETE FROM dispatch WHERE position = ANY (ARRAY(
    SELECT position FROM dispatch ORDER BY position LIMIT :limit FOR UPDATE SKIP LOCKED)) RETURNING job_id
), claimed AS (
  UPDATE job SET status = 'running', attempt = attempt + 1, started_at = now(), leased_by = :worker_id,
  leased_until = now() + timeout + CAST(:grace AS interval), changed_xid = pg_current_xact_id()
  WHERE id = ANY (ARRAY(SELECT job_id FROM next)) AND status = 'pending' RETURNING id, attempt
)
SELECT coalesce(array_agg(id), '{}') AS ids, coalesce(array_agg(attempt), '{}') AS attempts,
  coalesce(array_agg(CAST('null' AS text)), '{}') AS outputs FROM claimed
"""


def scenario() -> Scenario:
    """Return the cases."""
    calm = Comparison(case=_CALM, figure="p50_ms")
    return Scenario(
        name="dispatch table",
        says=f"pgbench claims and completes {pgbench.BATCH} a batch; with a second table, moves them there first",
        cases=[
            Case(name=_PLANNED, run=_planned, prepare=rows.fill),
            Case(name="moved by one process", run=_moved, prepare=_fill, against=Comparison(case=_PLANNED)),
            Case(name=_CALM, run=partial(_claims, 0), prepare=_fill, rated=False, most=10_000),
            Case(
                name=f"the same, {_DEAD:,} dead behind a reader",
                run=partial(_claims, _DEAD),
                prepare=_fill,
                against=calm,
                rated=False,
                most=10_000,
                most_rounds=1,
            ),
        ],
    )


def _fill(place: Place, jobs: int) -> None:
    place.run("DROP TABLE IF EXISTS dispatch", _TABLE)
    rows.fill(place, jobs)


def _planned(place: Place, watch: Stopwatch, jobs: int) -> int:
    pgbench.run(place, watch, pgbench.claim() + pgbench.complete(), transactions=-(-jobs // pgbench.BATCH))
    return pgbench.completed(place)


def _moved(place: Place, watch: Stopwatch, jobs: int) -> int:
    script = _MOVE.strip() + "\n" + _CLAIM.strip() + "\n\\gset\n" + pgbench.complete()
    pgbench.run(place, watch, script, transactions=-(-jobs // pgbench.BATCH))
    return pgbench.completed(place)


def _claims(dead: int, place: Place, watch: Stopwatch, jobs: int) -> int:
    dead = dead * jobs // 10_000
    with pins.reader(place), claiming.connect(place) as connection:
        _churn(connection, dead)
        place.run("VACUUM dispatch")  # which removes nothing while the transaction is open
        connection.execute(text("INSERT INTO dispatch (job_id) SELECT id FROM job ORDER BY id"))
        claim = _claim_of_one(connection)
        with watch:
            waits = [claim() for _ in range(min(claiming.CLAIMS, jobs))]
    watch.figures["dead"] = float(dead)
    return claiming.report(watch, waits)


def _churn(connection: Connection, dead: int) -> None:
    """Lay out and take away so many, a hundred at a time."""
    for _ in range(-(-dead // pgbench.BATCH)):
        connection.execute(
            text("INSERT INTO dispatch (job_id) SELECT gen_random_uuid() FROM generate_series(1, :many)"),
            {"many": pgbench.BATCH},
        )
        connection.execute(
            text("DELETE FROM dispatch WHERE position > (SELECT max(position) - :many FROM dispatch)"),
            {"many": pgbench.BATCH},
        )


def _claim_of_one(connection: Connection) -> Callable[[], float]:
    statement = text(_CLAIM)
    given: dict[str, Any] = {"limit": 1, "worker_id": pgbench.WORKER, "grace": "15 s"}

    def claim() -> float:
        began = time.monotonic()
        connection.execute(statement, given).one()
        return time.monotonic() - began

    return claim

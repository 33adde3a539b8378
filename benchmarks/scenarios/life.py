"""What each statement of a job's life costs the server: the insert, the claim, the completion."""

from __future__ import annotations

from benchmarks import pgbench, rows
from benchmarks.harness import Case, Scenario
from benchmarks.meter import Stopwatch
from benchmarks.place import Place


def scenario() -> Scenario:
    """Return the cases."""
    return Scenario(
        name="life of a job",
        says=f"each statement separately: COPY, then pgbench claiming and completing, {pgbench.BATCH} a batch",
        cases=(
            Case(name="insert", run=_insert),
            Case(name="claim", run=_claim, prepare=rows.fill),
            Case(name="complete", run=_complete, prepare=_claimed),
        ),
    )


def live(place: Place, watch: Stopwatch, jobs: int) -> int:
    """Insert, claim and complete so many jobs."""
    _insert(place, watch, jobs)
    pgbench.run(place, watch, pgbench.claim() + pgbench.complete(), transactions=-(-jobs // pgbench.BATCH))
    return pgbench.completed(place)


def _insert(place: Place, watch: Stopwatch, jobs: int) -> int:
    rows.copy_timed(place, watch, jobs)
    return jobs


def _claim(place: Place, watch: Stopwatch, jobs: int) -> int:
    pgbench.run(place, watch, pgbench.claim(), transactions=-(-jobs // pgbench.BATCH))
    return int(place.scalar("SELECT count(*) FROM job WHERE status = 'running'"))


def _claimed(place: Place, jobs: int) -> None:
    rows.fill(place, jobs)
    _claim(place, Stopwatch(None), jobs)
    place.run(
        "DROP TABLE IF EXISTS batch",
        "CREATE UNLOGGED TABLE batch AS SELECT n, array_agg(id ORDER BY id) AS ids, array_agg(attempt) AS attempts,"
        f" array_agg('null'::text) AS outputs FROM (SELECT *, (row_number() OVER (ORDER BY id) - 1) / {pgbench.BATCH} AS n"
        " FROM job WHERE status = 'running') AS numbered GROUP BY n",
        "CREATE UNIQUE INDEX ON batch (n)",
    )


def _complete(place: Place, watch: Stopwatch, jobs: int) -> int:
    # What it completes is read from a table of arrays: a hundredth of a row a job.
    script = "SELECT ids, attempts, outputs FROM batch WHERE n = :n\n\\gset\n" + pgbench.complete() + "\\set n :n + 1\n"
    pgbench.run(place, watch, script, transactions=-(-jobs // pgbench.BATCH))
    return pgbench.completed(place)

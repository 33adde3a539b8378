"""All columns of all jobs as a DataFrame, beside COPY of the same columns to one client."""

from __future__ import annotations

from functools import partial, reduce
from typing import Any, Final

from benchmarks import rows, spark
from benchmarks.harness import Case, Comparison, Scenario
from benchmarks.meter import Stopwatch
from benchmarks.place import Place
from sa_jobqueue import Job
from sa_jobqueue.db.copy import copy_text
from sa_jobqueue.pipeline.history import JOBS
from sa_jobqueue.pipeline.statements import history

_COPY: Final = "COPY"


def scenario() -> Scenario:
    """Return the cases."""
    limit = Comparison(case=_COPY)
    return Scenario(
        name="pipeline read",
        says="every column of every job: COPY read by one client, and Spark to a sink that keeps nothing",
        jobs=1_000_000,
        cases=(
            Case(name=_COPY, run=_copy, prepare=_filled),
            Case(name="Spark", run=_read, prepare=_warm, against=limit),
            *(
                Case(name=f"Spark, {name}", run=partial(_loaded, parts=parts), prepare=_warm, against=limit)
                for name, parts in (("one part", 1), ("4 parts", 4), ("200 parts", 200))
            ),
            *(
                Case(name=f"JDBC, {parts} parts", run=partial(_read_by_jdbc, parts=parts), prepare=_warm, against=limit)
                for parts in (1, spark.TASKS)
                if spark.jdbc_jar()
            ),
        ),
    )


def _filled(place: Place, jobs: int) -> None:
    if rows.count(place) != jobs:  # what is read stays as it is
        rows.fill(place, jobs)


def _warm(place: Place, jobs: int) -> None:
    _filled(place, jobs)
    spark.wake(place.url)


def _copy(place: Place, watch: Stopwatch, jobs: int) -> int:
    query, parameters = copy_text(history.rows(Job, JOBS))
    row_count = 0
    with place.engine().connect() as connection:
        driver: Any = connection.connection.driver_connection
        with watch, driver.cursor() as cursor, cursor.copy(query, parameters) as copy:
            for _ in copy:  # a row each
                row_count += 1
    return row_count


def _read(place: Place, watch: Stopwatch, jobs: int) -> int:
    return _loaded(place, watch, jobs, parts=spark.TASKS)


def _read_by_jdbc(place: Place, watch: Stopwatch, jobs: int, *, parts: int) -> int:
    """Read the table in parts of ids. To find their bounds is the reader's task, and is not measured; to load them is."""
    reader = spark.session().read.format("jdbc").options(**spark.jdbc_options(place.tcp_url), fetchsize="10000")
    edges = place.scalar(
        "SELECT array_agg(id::text ORDER BY id) FROM (SELECT id, row_number() OVER (ORDER BY id) AS n FROM job) AS each"
        f" WHERE n % {max(1, jobs // parts)} = 0"
    )
    queries = []
    for low, high in zip([None, *edges[: parts - 1]], [*edges[: parts - 1], None], strict=True):
        bounds = [f"id >= '{low}'"] * (low is not None) + [f"id < '{high}'"] * (high is not None)
        queries.append(f"SELECT * FROM job WHERE {' AND '.join(bounds) or 'true'}")
    watch.beside = spark.pids
    with watch:
        frames = [reader.option("query", query).load() for query in queries]
        whole = reduce(lambda first, second: first.union(second), frames)
        whole.write.format("noop").mode("overwrite").save()
    watch.round_trips = None
    return rows.count(place)


def _loaded(place: Place, watch: Stopwatch, jobs: int, *, parts: int) -> int:
    watch.beside = spark.pids
    with watch:
        spark.read(place.url, parts=parts)
    watch.round_trips = None
    return rows.count(place)

"""Many rows of a DataFrame enqueued exactly once, beside COPY, Spark's own JDBC sink, and one job a transaction."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from io import StringIO
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy.orm import Session

from benchmarks import rows, spark
from benchmarks.harness import Case, Comparison, Scenario
from benchmarks.meter import Stopwatch
from benchmarks.place import Place
from sa_jobqueue import Job

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_COPY: Final = "COPY"
_SPARK: Final = "Spark"
_BLOCK: Final = 64 * 1024
_TABLES: Final = {"into job": "job", "into a plain table": "plain_job"}
"""What Spark's own sink writes to: the table of jobs, and one of the same columns that has no trigger and only one index."""


def scenario() -> Scenario:
    """Return the cases."""
    limit = Comparison(case=_COPY)
    return Scenario(
        name="pipeline write",
        says="rows made before; COPY sends text into the job table, Spark stages and commits; its start is not measured",
        jobs=300_000,
        cases=(
            Case(name=_COPY, run=_copy),
            Case(name=_SPARK, run=_written, prepare=_warm_up(_write), against=limit),
            Case(name="Spark, checked by a handler", run=_enqueued, prepare=_warm_up(_enqueue), against=limit),
            *(_in_parts(parts, limit) for parts in (4, 200)),
            *(_by_jdbc(f"JDBC, {name}", table, limit) for name, table in _TABLES.items() if spark.jdbc_jar()),
            Case(name="session.add, a commit each", run=_add, against=Comparison(case=_SPARK), most=500),
        ),
    )


@cache
def _text(jobs: int) -> str:
    text = StringIO()
    for row in rows.tuples(jobs):
        text.write("\t".join(map(str, row)) + "\n")
    return text.getvalue()


def _in_parts(parts: int, limit: Comparison) -> Case:
    write = partial(_write, parts=parts)
    return Case(
        name=f"Spark, {parts} partitions", run=partial(_measured, write), prepare=_warm_up(write, parts), against=limit
    )


def _by_jdbc(name: str, table: str, limit: Comparison) -> Case:
    write = partial(_write_by_jdbc, table=table)
    return Case(name=name, run=partial(_measured, write, table=table), prepare=_warm_up(write), against=limit)


@cache
def _frame(jobs: int, parts: int) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812

    numbers = spark.session().range(0, jobs, 1, parts)
    order_id = F.concat(F.lit("order-"), F.lpad(F.col("id").cast("string"), 8, "0"))
    frame = numbers.select(F.col("id").cast("int").alias("number"), order_id.alias("order_id"))
    frame = frame.withColumn("input", F.to_json(F.struct("number", "order_id")))
    frame = frame.withColumn("id", F.expr("uuid()")).cache()
    frame.count()
    return frame


def _copy(place: Place, watch: Stopwatch, jobs: int) -> int:
    text = _text(jobs)
    with place.engine().connect() as connection:
        driver: Any = connection.connection.driver_connection
        transaction = connection.begin()
        with watch:
            with driver.cursor() as cursor, cursor.copy(f"COPY job ({', '.join(rows.COLUMNS)}) FROM STDIN") as into:
                for start in range(0, len(text), _BLOCK):
                    into.write(text[start : start + _BLOCK])
            transaction.commit()
            if watch.round_trips is not None:
                watch.round_trips += 1
    return rows.count(place)


def _write(place: Place, jobs: int, *, parts: int = spark.TASKS) -> None:
    options = {"url": place.url, "type": rows.JOB_TYPE}
    _frame(jobs, parts).select("input").write.format("jobqueue").mode("append").options(**options).save()


def _write_by_jdbc(place: Place, jobs: int, *, table: str) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    whole = _frame(jobs, spark.TASKS).select("id", F.lit(rows.JOB_TYPE).alias("type_name"), "input")
    whole = whole.withColumns({"chain_id": F.col("id"), "chain_type_name": F.col("type_name")})
    options = spark.jdbc_options(place.tcp_url) | {"dbtable": table, "batchsize": "5000"}
    whole.write.format("jdbc").mode("append").options(**options).save()


def _enqueue(place: Place, jobs: int) -> None:
    from benchmarks.spark_app import checked
    from sa_jobqueue.pipeline.spark import enqueue

    enqueue(_frame(jobs, spark.TASKS), checked, payload=["number", "order_id"], url=place.url)


def _warm_up(act: Callable[[Place, int], None], parts: int = spark.TASKS) -> Callable[[Place, int], None]:
    def prepare(place: Place, jobs: int) -> None:
        _frame(jobs, parts)
        names = ", ".join(rows.COLUMNS)
        place.run(
            "DROP TABLE IF EXISTS plain_job",
            f"CREATE TABLE plain_job AS SELECT {names} FROM job LIMIT 0",
            "ALTER TABLE plain_job ADD PRIMARY KEY (id)",
        )
        act(place, min(jobs, 10_000))  # each round: Spark ends Python workers that stood idle for a minute
        place.clear()
        place.run("TRUNCATE plain_job")

    return prepare


def _written(place: Place, watch: Stopwatch, jobs: int) -> int:
    return _measured(_write, place, watch, jobs)


def _enqueued(place: Place, watch: Stopwatch, jobs: int) -> int:
    return _measured(_enqueue, place, watch, jobs)


def _measured(act: Callable[[Place, int], None], place: Place, watch: Stopwatch, jobs: int, *, table: str = "job") -> int:
    watch.beside = spark.pids
    with watch:
        act(place, jobs)
    watch.round_trips = None
    return int(place.scalar(f"SELECT count(*) FROM {table}"))


def _add(place: Place, watch: Stopwatch, jobs: int) -> int:
    engine = place.engine(size=1)
    with Session(engine) as session:
        session.connection()
        session.commit()
        with watch:
            for number in range(jobs):
                session.add(Job(rows.JOB_TYPE, rows.payload(number)))
                session.commit()
    engine.dispose()
    return rows.count(place)

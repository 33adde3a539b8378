"""Every value of a DataFrame reaches the handler as it was, or its column is refused."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pydantic import BaseModel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.readwriter import DataStreamWriter
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from sa_jobqueue import enqueue as enqueue_job
from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.payloads import opened
from sa_jobqueue.pipeline.operations.writes import list_rejected_rows
from sa_jobqueue.pipeline.spark import document, enqueue, enqueue_stream
from sa_jobqueue.pipeline.spark.columns import InvalidColumnError
from sa_jobqueue.pipeline.spark.errors import WriteError
from sa_jobqueue.pipeline.spark.validation import Checker
from sa_jobqueue.registry.job_types import Registry
from sa_jobqueue.testing import drain
from tests.fixtures.workers import PATIENCE
from tests.spark import parity_app
from tests.spark.parity_app import Everything, Inner, Price, receive

SCHEMA = """byte TINYINT, big BIGINT, real FLOAT, double DOUBLE, narrow DECIMAL(10,2), wide DECIMAL(38,18), flag BOOLEAN,
  text STRING, day DATE, instant TIMESTAMP, wall TIMESTAMP_NTZ, numbers ARRAY<DECIMAL(38,18)>, reals ARRAY<FLOAT>,
  by_name MAP<STRING, TIMESTAMP>, by_number MAP<INT, DECIMAL(20,3)>,
  inner STRUCT<amount: DECIMAL(38,18), at: TIMESTAMP, ratio: FLOAT>, many ARRAY<STRUCT<amount: DECIMAL(38,18), at: TIMESTAMP,
  ratio: FLOAT>>, small SMALLINT, whole INT, early DATE, clock TIME, last TIMESTAMP, matrix ARRAY<ARRAY<DECIMAL(38,18)>>,
  deep MAP<STRING, ARRAY<STRUCT<amount: DECIMAL(38,18), at: TIMESTAMP, ratio: FLOAT>>>, blank MAP<STRING, INT>,
  nothing DECIMAL(38,18), no_inner STRUCT<amount: DECIMAL(38,18), at: TIMESTAMP, ratio: FLOAT>, `a.b` INT"""
EXACT = Decimal("12345678901234567890.123456789012345678")
INSTANT = datetime(2026, 3, 29, 1, 59, 59, 123457, tzinfo=UTC)
FAR = datetime(1850, 1, 1, 0, 0, 0, 1, tzinfo=UTC)
"""Before time zones had whole minutes."""
INNER = {"amount": EXACT, "at": FAR, "ratio": 0.1}
ROW: dict[str, Any] = {
    **{"byte": -128, "big": 2**63 - 1, "real": 0.1, "double": 0.1, "narrow": Decimal("1.10"), "wide": EXACT, "flag": True},
    **{"text": 'ä"\\\u2028😀', "day": date(9999, 12, 31), "instant": INSTANT, "wall": INSTANT.replace(tzinfo=None)},
    **{
        "numbers": [EXACT, None],
        "reals": [0.1],
        "by_name": {"a b": INSTANT},
        "by_number": {-7: Decimal("98765432109876.543")},
    },
    **{"small": -(2**15), "whole": 2**31 - 1, "early": date(1, 1, 1), "clock": time(23, 59, 59, 999999), "blank": {}},
    **{"last": datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC), "matrix": [[EXACT], [], None], "deep": {"": [INNER]}},
    **{"inner": INNER, "many": [INNER, None], "nothing": None, "no_inner": None, "a.b": 5},
}


@pytest.fixture
def frame(spark: SparkSession) -> Iterator[DataFrame]:
    """Give the row, in a session whose zone is not that of the values."""
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    yield spark.createDataFrame([ROW], SCHEMA)
    spark.conf.set("spark.sql.session.timeZone", str(before))


def expected() -> Everything:
    """Return the row as Spark stores it: a FLOAT has 24 bits."""
    real = 0.10000000149011612
    inner = Inner(amount=EXACT, at=FAR, ratio=real)
    changed = {"real": real, "reals": [real], "inner": inner, "many": [inner, None], "deep": {"": [inner]}, "a_b": 5}
    return Everything(**{name: value for name, value in ROW.items() if name != "a.b"} | changed)


def received(engine: Engine) -> list[Any]:
    parity_app.received.clear()
    assert drain(parity_app.jobs, engine).completed
    return list(parity_app.received)


def test_every_type_reaches_the_handler_as_from_the_handlers_own_job(
    frame: DataFrame, database_url: str, engine: Engine, session: Session
) -> None:
    rows, app = frame.withColumnRenamed("a.b", "a_b"), "tests.spark.parity_app:jobs"
    enqueue(rows, receive, url=database_url)
    enqueue(rows, "everything", app=app, url=database_url)
    job = receive.job(expected())
    texts = frame.select(F.lit(json.dumps(job.input)).alias("input"))
    texts.write.format("jobqueue").mode("append").options(url=database_url, type="everything", app=app).save()
    with session.begin():
        enqueue_job(session, job)
    documents = rows.select(document(rows, receive).alias("input"), F.lit("everything").alias("type_name"))
    documents.write.format("jobqueue").mode("append").options(url=database_url, app=app).save()
    assert received(engine) == [expected()] * 5


def test_every_type_reaches_the_handler_through_a_stream(
    frame: DataFrame, spark: SparkSession, database_url: str, engine: Engine, tmp_path: Path
) -> None:
    rows = frame.withColumnRenamed("a.b", "a_b").drop("clock")  # no file format of Spark's has TIME
    rows.write.parquet(str(tmp_path / "rows"))
    stream = spark.readStream.schema(rows.schema).parquet(str(tmp_path / "rows"))
    with_clock = stream.withColumn("clock", F.lit(ROW["clock"]))
    finish(enqueue_stream(with_clock, receive, url=database_url), tmp_path / "handler")
    finish(enqueue_stream(with_clock, "everything", url=database_url, app="tests.spark.parity_app:jobs"), tmp_path / "name")

    def enqueue_batch(batch: DataFrame, number: int) -> None:
        timed = batch.withColumn("clock", F.lit(ROW["clock"]))
        enqueue(timed, receive, url=database_url, write_id=f"each-{number}")

    finish(stream.writeStream.foreachBatch(enqueue_batch), tmp_path / "each")
    assert received(engine) == [expected()] * 3
    with pytest.raises(InvalidOptionError, match=r"df: is a stream: use .*enqueue_stream"):
        enqueue(stream, receive, url=database_url)
    with pytest.raises(InvalidOptionError, match=r"df: is not a stream: use .*enqueue"):
        enqueue_stream(frame, receive, url=database_url)


def finish(writer: DataStreamWriter, checkpoint: Path) -> None:
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    assert query.awaitTermination(int(PATIENCE))
    assert query.exception() is None


def test_a_number_in_json_text_keeps_its_digits_or_its_row_is_refused(
    spark: SparkSession, database_url: str, engine: Engine, session: Session
) -> None:
    digits = "123456789012345678.91"
    texts = [
        ("price", f'{{"amount": {digits}, "ratio": 0.25}}'),
        ("price", f'{{"amount": 1.10, "ratio": {digits}}}'),  # a float is what the type asks for
        ("price", f'{{"amount": 1, "ratio": 1, "extra": {{"n": [{digits}]}}}}'),
        ("any", f"[{digits}]"),
        ("any", "[1.10, 1e2]"),
    ]
    rows = spark.createDataFrame(texts, "type_name STRING, input STRING")
    options = {"url": database_url, "app": "tests.spark.parity_app:jobs", "mode": "PERMISSIVE", "writeId": "digits"}
    rows.write.format("jobqueue").mode("append").options(**options).save()
    prices = [Price(amount=Decimal(digits), ratio=0.25), Price(amount=Decimal("1.10"), ratio=float(digits))]
    assert sorted(received(engine), key=str) == sorted([*prices, [1.1, 100.0]], key=str)
    rejected = {(row.field, row.reason.partition(":")[0]) for row in list_rejected_rows(session, "digits").items}
    reason = f"is {digits}, with more digits than a float keeps"
    assert rejected == {("input.extra.n[0]", reason), ("input[0]", reason)}


def test_a_number_in_json_text_without_handlers_is_refused_if_a_float_lacks_its_digits(
    spark: SparkSession, database_url: str, engine: Engine, session: Session
) -> None:
    exact = ["[0.1234567890123456]", "[1.7976931348623157E-300, 12345678.9]", '{"sa_jobqueue.codec": "x", "n": 1.10}']
    rounded = [
        "[12345678901234567.8]",
        "[1e-400]",
        "[1e-99999999999999999999]",
        "[12345678901234560e1, 12345678901234567e-1]",
    ]
    marked = '{"sa_jobqueue.codec": "x", "n": [0.12345678901234567890]}'
    rows = spark.createDataFrame([(text,) for text in [*exact, *rounded, marked]], "input STRING")
    options = {"url": database_url, "type": "any", "mode": "PERMISSIVE", "writeId": "digits"}
    rows.write.format("jobqueue").mode("append").options(**options).save()
    assert sorted(received(engine), key=str) == sorted(map(json.loads, exact), key=str)
    rejected = list_rejected_rows(session, "digits").items
    assert sorted(row.field for row in rejected) == sorted(["input[0]"] * 3 + ["input[1]", "input.n[0]"])
    assert {row.reason.partition(", ")[2].partition(":")[0] for row in rejected} == {"with more digits than a float keeps"}


def test_a_double_that_java_writes_differently_keeps_its_value(
    spark: SparkSession, database_url: str, engine: Engine
) -> None:
    numbers = [5e-324, -8.8232046013403952e16, 2.0e-3, 1e23, 1.7976931348623157e308, 123456789012345680.0]
    rows = spark.createDataFrame([(numbers,)], "numbers ARRAY<DOUBLE>")
    ((spark_text,),) = rows.select(F.to_json(F.struct("numbers"))).collect()
    assert "4.9E-324" in spark_text
    assert "-8.8232046013403952E16" in spark_text
    for target in (parity_app.anything, "any"):
        enqueue(rows, target, url=database_url)
        (payload,) = received(engine)
        assert list(map(float, payload["numbers"])) == numbers  # PostgreSQL writes the large ones without an exponent


@pytest.mark.parametrize(
    "expression",
    ["{0}", "array('x', {0})", "named_struct('s', {0})", "map('x', array({0}))", "map({0}, 1)", "map('x', map({0}, NULL))"],
)
def test_a_text_that_is_not_utf8_is_refused(
    spark: SparkSession, database_url: str, session: Session, expression: str
) -> None:
    odd = expression.format("CAST(if(id = 1, X'41FF', X'C3A9') AS STRING)")
    rows = spark.range(2).select(F.expr(odd).alias("odd"))
    for target in (parity_app.anything, "any"):
        result = enqueue(rows, target, payload=["odd"], url=database_url, mode="PERMISSIVE")
        assert (result.enqueued, result.rejected) == (1, 1)
        (rejected,) = list_rejected_rows(session, result.write_id).items
        assert rejected.reason == "has bytes that are not UTF-8"


@pytest.mark.parametrize(
    "value", ["TIMESTAMP'+10000-01-01 00:00:00'", "DATE'+10000-01-01'", "TIMESTAMP_NTZ'-0001-01-01 00:00:00'"]
)
def test_a_year_that_python_does_not_have_is_refused(
    spark: SparkSession, database_url: str, session: Session, value: str
) -> None:
    rows = spark.range(2).select(F.expr(f"array(CASE WHEN id = 1 THEN {value} END)").alias("odd"))
    for target in ("any", parity_app.anything):
        result = enqueue(rows, target, url=database_url, mode="PERMISSIVE")
        assert (result.enqueued, result.rejected) == (1, 1)
        (rejected,) = list_rejected_rows(session, result.write_id).items
        assert rejected.reason == "has a year before 1 or after 9999, which Python does not have"


def test_a_single_column_and_names_with_dots_keep_their_values(frame: DataFrame, database_url: str, engine: Engine) -> None:
    keys = frame.select(F.lit(1).alias("n"), F.lit("k").alias("of.a`key"))
    assert enqueue(keys, "any", payload=["n"], deduplication_key="of.a`key", url=database_url).enqueued == 1
    assert received(engine) == [{"n": 1}]
    enqueue(frame, "any", payload="instant", url=database_url)
    enqueue(frame, "any", payload=["a.b", "instant"], url=database_url)
    with pytest.raises(InvalidOptionError, match="on_failure: must be one of wait, fail, continue, got 'explode'"):
        enqueue(frame, "any", payload="instant", on_failure="explode", url=database_url)
    instant = "2026-03-29T01:59:59.123457Z"
    assert sorted(received(engine), key=str) == [instant, {"a.b": 5, "instant": instant}]


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("CAST('x' AS BINARY)", "BINARY.*Base64Bytes"),
        ("array(CAST('x' AS BINARY))", "BINARY"),
        ("INTERVAL '1' DAY", "seconds"),
        ("named_struct('inner', INTERVAL '1' YEAR)", "months"),
        ("array(INTERVAL '1' DAY)", "INTERVAL DAY.*seconds"),
        ("make_interval(1)", "INTERVAL.*seconds"),
        ("map(1.5D, 2)", "keys of type DOUBLE"),
        ("map(DATE'2026-01-31', 2)", "keys of type DATE"),
        ("named_struct('of', parse_json('1'))", "VARIANT.*to_json"),
        ("ST_GeomFromWKB(X'0101000000000000000000F03F0000000000000040')", "GEOMETRY.*cast it to STRING"),
        ("named_struct('of', named_struct('x', 1, 'x', 2))", "several fields of one name"),
        ("named_struct('of', named_struct('x', 1.5BD, 'X', 2.5BD))", "several fields of one name, but for their case"),
    ],
)
def test_a_column_that_json_would_change_is_refused_by_name(
    spark: SparkSession, database_url: str, expression: str, words: str
) -> None:
    rows = spark.range(1).select(F.expr(expression).alias("odd"))
    for target in (receive, "any"):
        with pytest.raises(InvalidColumnError, match=words) as raised:
            enqueue(rows, target, url=database_url)
        assert raised.value.field.startswith("odd")


def test_columns_of_one_name_are_refused(spark: SparkSession, database_url: str) -> None:
    for query, options, words in (
        ("SELECT 1 AS a, 2 AS A", {}, "a: is the name of 2 columns, but for their case: rename all but one"),
        ("SELECT 1 AS a, 2 AS A", {"payload": ["a"]}, "a: is the name of 2 columns"),
        ("SELECT 1 AS a, 2 AS k, 3 AS K", {"payload": "a", "ordering_key": "k"}, "k: is the name of 2 columns"),
        ("SELECT 1 AS a, 2 AS a", {}, "a: is there twice"),
        ("SELECT 1 AS a", {"payload": ["a", "a"]}, "a: is there twice"),
    ):
        row_options: dict[str, Any] = options
        with pytest.raises(InvalidColumnError, match=words):
            enqueue(spark.sql(query), "any", url=database_url, **row_options)
    number: Any = 5
    with pytest.raises(InvalidOptionError, match="payload: must be a column, its name, or names of columns, got 5"):
        enqueue(spark.sql("SELECT 1 AS a"), "any", url=database_url, payload=number)


def test_a_wide_decimal_is_refused_where_no_handler_reads_it(frame: DataFrame, database_url: str) -> None:
    with pytest.raises(InvalidColumnError, match=r"DECIMAL\(38,18\), with more digits than .* cast it to STRING"):
        enqueue(frame.select("wide"), "any", url=database_url)


def test_a_row_with_a_number_that_json_lacks_is_refused(spark: SparkSession, database_url: str, session: Session) -> None:
    schema = "one DOUBLE, many ARRAY<FLOAT>, inner STRUCT<by_name: MAP<STRING, DOUBLE>>"
    odd = [(math.nan, None, None), (None, [math.inf], None), (None, None, ({"y": -math.inf},))]
    rows = spark.createDataFrame([*odd, (1.5, [1.5], ({"y": 1.5},))], schema)
    for target in ("any", parity_app.anything):
        result = enqueue(rows, target, url=database_url, mode="PERMISSIVE")
        assert (result.enqueued, result.rejected) == (1, len(odd))
        rejected = list_rejected_rows(session, result.write_id).items
        assert {reject.reason for reject in rejected} == {"has NaN or Infinity, which JSON has no numbers for"}
    with pytest.raises(WriteError, match="input has NaN or Infinity"):
        enqueue(rows, "any", url=database_url)


def test_the_payload_type_of_the_parity_test_has_a_field_for_each_column() -> None:
    assert issubclass(Everything, BaseModel)
    assert {name.replace("a_b", "a.b") for name in Everything.model_fields} == set(ROW)


def test_rows_of_spark_without_handlers_choose_no_codec() -> None:
    documents = [{"sa_jobqueue.codec": "encrypted", "data": "x"}, {"n": 1}, {"sa_jobqueue.codec": "encrypted"}]
    texts = pa.array([*map(json.dumps, documents), None, "sa_jobqueue.codec {"])
    batch = pa.RecordBatch.from_arrays([texts, pa.array(["send"] * len(texts))], ["input", "type_name"])
    *stored, none, wrong = Checker().check(batch).columns["input"].to_pylist()
    assert [opened("input", json.loads(document), Registry().find_codec) for document in stored] == documents
    assert (none, wrong) == (None, "sa_jobqueue.codec {")

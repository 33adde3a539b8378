"""A password in the URL is never visible: not in plans, logs, event logs, errors, messages or reprs."""

from __future__ import annotations

import ast
import logging
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable
from sqlalchemy import Engine, make_url

import sa_jobqueue.pipeline.spark
from sa_jobqueue.errors import DatabaseUnavailableError, InvalidOptionError
from sa_jobqueue.pipeline.spark import stream_lag
from sa_jobqueue.pipeline.spark.connections import connect, load_object
from sa_jobqueue.pipeline.spark.options import OPTIONS, Secret, Use, read_options
from sa_jobqueue.pipeline.spark.reading import schema_of
from sa_jobqueue.pipeline.spark.source import JobQueueSource
from sa_jobqueue.testing.plugin import MakeDatabase
from sa_jobqueue.testing.servers import PostgresServer
from tests.fixtures.jobs import Jobs
from tests.fixtures.transactions import write

PASSWORD = "hunter2-s3cr3t"


@pytest.fixture
def secret_url(database_url: str) -> str:
    """Give the URL of the test's queue, with a password that its server does not ask for."""
    return make_url(database_url).set(password=PASSWORD).render_as_string(hide_password=False)


def texts(exposed: object) -> Iterator[str]:
    """Return everything that an object shows of itself, parts and causes included."""
    yield repr(exposed)
    yield str(exposed)
    if isinstance(exposed, BaseException):
        for cause in (exposed.__cause__, exposed.__context__ if not exposed.__suppress_context__ else None):
            if cause is not None:
                yield from texts(cause)
    for member in getattr(exposed, "__dict__", {}).values():
        yield repr(member)
        yield str(member)


def test_no_object_made_from_options_reveals_the_password(secret_url: str, jobs: Jobs) -> None:
    jobs.add_many(3)
    source = JobQueueSource({"path": "jobs", "url": secret_url, "numpartitions": "2"})
    reader: Any = source.reader(source.schema())
    stream: Any = JobQueueSource({"path": "jobs", "url": secret_url}).streamReader(source.schema())
    begin = stream.initialOffset()
    objects = [
        source,
        reader,
        stream,
        reader.options,
        Secret(PASSWORD),
        begin,
        stream.latestOffset(begin, ReadAllAvailable()),
    ]
    objects += [*reader.partitions(), *stream.partitions(begin, begin | {"xid": str(int(begin["xid"]) + 0)})]
    objects += [stream.reportLatestOffset(), stream_lag(secret_url)]
    with connect(reader.options) as connection:
        objects += [connection, connection.engine]
    for member in objects:
        assert not [text for text in texts(member) if PASSWORD in text], type(member)
    # What travels to the executors with no reader is not even there unseen.
    assert PASSWORD.encode() not in pickle.dumps(reader.partitions())
    assert f"{Secret(PASSWORD)} {Secret(PASSWORD)!r}" == "Secret() Secret()"


def test_a_url_that_is_given_twice_is_not_shown() -> None:
    url = f"postgresql://postgres:{PASSWORD}@127.0.0.1:1/none"
    with pytest.raises(InvalidOptionError) as refused:
        stream_lag(url, URL=url)
    assert PASSWORD not in str(refused.value)


@pytest.mark.parametrize("use", Use)
@pytest.mark.parametrize(
    "url", [f"postgresql://me:{PASSWORD}@h/d", f"postgresql://me:/{PASSWORD}@x@h/d", f"host=h password={PASSWORD}"]
)
def test_a_url_in_place_of_another_value_is_refused_without_its_password(use: Use, url: str) -> None:
    """As in `.load(url)`, whose error Spark writes to its event log."""

    def refusal_of(name: str) -> InvalidOptionError | None:
        try:
            options = read_options({"path": "jobs"} | {name: url} if name == "columns" else {name: url}, use)
            if name == "columns":
                schema_of(options)
            elif name == "app":
                load_object(options["app"])
        except InvalidOptionError as error:
            return error
        return None

    of_use = [option.name for option in OPTIONS if use in option.uses and option.name != "url"]
    refusals = {name: error for name in ("path", "dbtable", *of_use) if (error := refusal_of(name)) is not None}
    assert refusals.keys() > {"path", "dbtable", "prefix", "app", "statementTimeout"}
    for name, error in refusals.items():
        assert not [text for text in texts(error) if PASSWORD in text], name


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://postgres:{PASSWORD}@127.0.0.1:1/none",
        f"postgresql://postgres@127.0.0.1:1/none?password={PASSWORD}",
        f"postgresql://postgres@127.0.0.1:1/none?sslpassword={PASSWORD}&sslmode=require",
        f"postgresql://postgres@127.0.0.1:1/{PASSWORD}?password={PASSWORD}",
        f"postgresql://postgres:{PASSWORD}@127.0.0.1:1/none?nosuchoption=1",
        f"postgresql://postgres:pass@{PASSWORD}@127.0.0.1:1/none",
        f"postgresql://postgres:{PASSWORD}@127.0.0.1:port/none",
        f"mysql://postgres:{PASSWORD}@127.0.0.1:1/none",
        f"//{PASSWORD}",
    ],
)
def test_a_connection_error_contains_no_password(url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with pytest.raises((DatabaseUnavailableError, InvalidOptionError)) as caught:
        stream_lag(url)
    assert not [text for text in texts(caught.value) if PASSWORD in text]
    assert PASSWORD not in caplog.text


def test_the_password_may_come_from_a_file_the_environment_or_libpq(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PGSERVICE", raising=False)
    file = tmp_path / "password"
    file.write_text(f"{PASSWORD}\n")
    options = read_options({"url": database_url, "passwordfile": str(file)}, Use.READ)
    with connect(options) as connection:
        driver: Any = connection.connection.driver_connection
        assert driver.pgconn.password.decode() == PASSWORD
    assert PASSWORD.encode() not in pickle.dumps(options)
    with pytest.raises(InvalidOptionError, match="passwordFile: cannot be read here: No such file"):
        stream_lag(database_url, passwordFile=str(tmp_path / "none"))
    monkeypatch.setenv("SA_JOBQUEUE_URL", database_url)
    assert stream_lag().xid > 0
    monkeypatch.delenv("SA_JOBQUEUE_URL")
    service = tmp_path / "services.conf"
    url = make_url(database_url)
    host = url.query.get("host", url.host)
    port = url.query.get("port", url.port)
    service.write_text(f"[queue]\nhost={host}\nport={port}\nuser={url.username}\ndbname={url.database}\n")
    monkeypatch.setenv("PGSERVICEFILE", str(service))
    monkeypatch.setenv("PGSERVICE", "queue")
    assert stream_lag().xid > 0


def test_spark_never_shows_the_password(
    spark: SparkSession,
    secret_url: str,
    jobs: Jobs,
    engine: Engine,
    event_log: Path,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    jobs.add_many(3)
    texts_shown: list[str] = []
    frame = spark.read.format("jobqueue").option("url", secret_url).load("jobs")
    view = frame.filter("status = 'pending'").groupBy("queue").count()
    view.collect()
    for mode in ("simple", "extended", "codegen", "cost", "formatted"):
        view.explain(mode=mode)
    texts_shown.append(view._jdf.queryExecution().logical().toJSON())
    spark.sql(f"CREATE OR REPLACE TEMP VIEW secret_jobs USING jobqueue OPTIONS (url '{secret_url}', dataset 'jobs')")
    assert spark.table("secret_jobs").count() == 3
    query = (
        spark.readStream.format("jobqueue")
        .option("url", secret_url)
        .load("attempts")
        .writeStream.format("noop")
        .trigger(availableNow=True)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    query.awaitTermination()
    texts_shown.append(str(query.lastProgress))
    texts_shown += [
        file.read_text() for file in (tmp_path / "checkpoint").rglob("*") if file.suffix != ".crc" and file.is_file()
    ]
    # Tasks that fail, and a plan that does.
    write(engine, "ALTER TABLE job RENAME TO elsewhere")
    with pytest.raises(Exception, match="ReadError") as failed:
        frame.count()  # planned already: it is the tasks that fail
    texts_shown.append(str(failed.value))
    wrong = make_url(secret_url).set(database="nowhere").render_as_string(hide_password=False)
    with pytest.raises(Exception, match="nowhere") as failed:
        spark.read.format("jobqueue").option("url", wrong).load("jobs").count()
    texts_shown.append(str(failed.value))
    spark._jsc.sc().listenerBus().waitUntilEmpty()
    (log,) = (file for file in event_log.iterdir() if not file.name.startswith("."))
    events = log.read_bytes()
    assert b"secret_jobs" in events  # it is the log of this session, written out, and readable as it lies there
    output = capfd.readouterr()
    assert "groupBy" in output.out or "HashAggregate" in output.out
    for text in [*texts_shown, events.decode(), output.out, output.err]:
        assert PASSWORD not in text


@pytest.mark.slow
def test_an_authentication_error_contains_no_password(make_database: MakeDatabase, oldest_server: PostgresServer) -> None:
    here = make_database(oldest_server)
    with psycopg.connect(make_url(here).set(drivername="postgresql").render_as_string(hide_password=False)) as connection:
        connection.execute("DROP ROLE IF EXISTS nobody_logs_in")
        connection.execute("CREATE ROLE nobody_logs_in NOLOGIN")
        connection.commit()
        url = make_url(here).set(username="nobody_logs_in", password=PASSWORD).render_as_string(hide_password=False)
        with pytest.raises(DatabaseUnavailableError, match="nobody_logs_in") as caught:
            stream_lag(url)
        assert not [text for text in texts(caught.value) if PASSWORD in text]
        connection.execute("DROP ROLE nobody_logs_in")


def test_nothing_needs_a_spark_context() -> None:
    """Spark Connect has none: what asks for it works in classic sessions only."""
    (folder,) = sa_jobqueue.pipeline.spark.__path__
    names = {"sparkContext", "rdd", "_jvm", "_jdf", "_jsparkSession", "_sc"}
    used = {
        (path.name, node.attr)
        for path in Path(folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in names
    }
    # Both check first which kind the session is.
    assert used <= {("sessions.py", "sparkContext"), ("progress.py", "sparkContext")}

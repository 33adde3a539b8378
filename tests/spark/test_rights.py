"""A database user without the rights that Spark or the archive needs: the error names the role that has them."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession
from sqlalchemy import Engine, make_url, text

from sa_jobqueue import JobStatus
from sa_jobqueue.cli import main
from sa_jobqueue.errors import SchemaMissingError
from sa_jobqueue.layout import Layout
from sa_jobqueue.migrations.grants import RIGHTS, apply_grants
from sa_jobqueue.pipeline.archive import archive, archive_runs, preview
from sa_jobqueue.pipeline.archive.errors import ArchiveError
from sa_jobqueue.pipeline.spark import enqueue, written
from sa_jobqueue.pipeline.spark.errors import ReadError, WriteError
from tests.fixtures.database import both_servers, own_database
from tests.fixtures.jobs import Jobs
from tests.spark.reading import batches, read, stream
from tests.spark.writing import write

pytestmark = own_database

UrlOf = Callable[[str], str]
_PRODUCER = r"permission denied for \w+ \w+: grant its user the role jobqueue_producer, which sa-jobqueue grants creates"
_OBSERVER, _OPERATOR = _PRODUCER.replace("producer", "observer"), _PRODUCER.replace("producer", "operator")


@pytest.fixture
def url_of(engine: Engine) -> Iterator[UrlOf]:
    """Give a function that returns the URL of a user with one of the roles, or with none."""
    name = f"t{secrets.token_hex(5)}"
    users: list[str] = []
    with engine.begin() as connection:
        apply_grants(connection, Layout(pipeline=True), roles=name)

    def url(role: str) -> str:
        user = f"{name}_{role}_app"
        with engine.begin() as connection:
            connection.execute(text(f"CREATE ROLE {user} LOGIN PASSWORD 'app'"))
            if role in RIGHTS:
                connection.execute(text(f"GRANT {name}_{role} TO {user}"))
        users.append(user)
        return make_url(engine.url).set(username=user, password="app").render_as_string(hide_password=False)

    yield url
    with engine.begin() as connection:
        for role in (*users, *(f"{name}_{role}" for role in RIGHTS)):
            connection.execute(text(f"DROP OWNED BY {role}; DROP ROLE {role}"))


@both_servers
def test_a_write_without_the_rights_of_a_producer_names_that_role(url_of: UrlOf) -> None:
    for url in map(url_of, ("observer", "none")):
        for options in ({}, {"writeId": "nightly"}):
            with pytest.raises(WriteError, match=_PRODUCER):
                write(url, [{"input": "1"}], type="t", **options)
    assert write(url_of("producer"), [{"input": "1"}], type="t").enqueued == 1


@both_servers
def test_a_read_without_the_rights_of_an_observer_names_that_role(url_of: UrlOf) -> None:
    url = url_of("none")
    for dataset in ("jobs", "attempts", "dead_letters", "blockers"):
        with pytest.raises(ReadError, match=_OBSERVER):
            read(url, dataset)
    with pytest.raises(ReadError, match=_OBSERVER):
        list(batches(stream(url)))
    observer = url_of("observer")
    assert read(observer, "jobs") == []
    assert list(batches(stream(observer))) == []


@both_servers
def test_a_user_who_may_not_use_the_schema_is_told_so(url_of: UrlOf, engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text("REVOKE USAGE ON SCHEMA public FROM PUBLIC"))
    user = url_of("none")
    refusal = (
        'table job is in the schema public, which this user may not use: GRANT USAGE ON SCHEMA "public", or grant the user'
    )
    for call in (lambda: write(user, [{"input": "1"}], type="t"), lambda: read(user, "jobs"), lambda: archive_runs(user)):
        with pytest.raises(SchemaMissingError, match=refusal):
            call()
    with engine.begin() as connection:  # another's table of that name
        stamp = connection.scalar(text("SELECT obj_description('job'::regclass, 'pg_class')"))
        connection.execute(text("COMMENT ON TABLE job IS 'printing jobs'"))
    with pytest.raises(SchemaMissingError, match="table job does not exist"):
        read(user, "jobs")
    with engine.begin() as connection:
        connection.execute(text(f"COMMENT ON TABLE job IS '{stamp}'"))
    with pytest.raises(ReadError, match="permission denied for schema public: grant its user the role jobqueue_observer"):
        read(user, "jobs", schema="public")
    assert read(url_of("observer"), "jobs") == []


@both_servers
def test_an_archiver_without_the_rights_of_an_operator_names_that_role(url_of: UrlOf, jobs: Jobs, tmp_path: Path) -> None:
    jobs.add(JobStatus.COMPLETED)
    age = timedelta(0)
    observer = url_of("observer")
    with pytest.raises(ArchiveError, match=_OPERATOR):
        archive(observer, tmp_path, before=age)
    result = CliRunner().invoke(
        main, ["archive", "--before", "0d", "--to", str(tmp_path)], env={"SA_JOBQUEUE_URL": observer}
    )
    assert "jobqueue_operator" in result.output
    assert result.exit_code == 1
    nobody = url_of("none")
    for call in (lambda: preview(nobody, before=age), lambda: archive_runs(nobody)):
        with pytest.raises(ArchiveError, match=_OBSERVER):
            call()
    assert preview(observer, before=age).chains == 1
    assert archive(url_of("operator"), tmp_path, before=age).chains == 1


@pytest.mark.timeout(600)
def test_spark_shows_the_role_that_a_user_needs(spark: SparkSession, url_of: UrlOf) -> None:
    url = url_of("none")
    rows = spark.range(3).selectExpr("CAST(id AS STRING) AS input")
    with pytest.raises(WriteError, match=_PRODUCER):
        enqueue(rows, "t", payload="input", url=url)
    with pytest.raises(WriteError, match=_PRODUCER):
        written(url, "nightly")
    with pytest.raises(Exception, match=_PRODUCER):
        rows.write.format("jobqueue").mode("append").options(url=url, type="t").save()
    with pytest.raises(Exception, match=_OBSERVER):
        spark.read.format("jobqueue").option("url", url).load("jobs").count()

"""Rows that were restored from a cluster with a larger transaction counter: refused, then read and streamed once."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest
from click.testing import CliRunner
from sqlalchemy import Engine, make_url, text
from sqlalchemy.orm import Session

from sa_jobqueue import Job
from sa_jobqueue.cli import main
from sa_jobqueue.cli.doctor import examine
from sa_jobqueue.operations.restored import restamp, restored_tables
from sa_jobqueue.pipeline.spark import RestoredRowsError
from sa_jobqueue.testing.embedded import EmbeddedServer
from sa_jobqueue.testing.servers import PostgresServer, open_server
from tests.fixtures.transactions import call
from tests.spark.reading import batches, connected, numbers, read, stream, write

pytestmark = pytest.mark.parametrize("database_url", ["newest"], indirect=True)
AHEAD = 5_000_000_000
FILL = f"""
INSERT INTO job (id, chain_id, queue, priority, max_attempts, input_version, type_name, chain_type_name, status,
  completed_at, chain_completed_at, changed_xid)
SELECT id, id, 'default', 0, 1, 1, 'test', 'test', 'completed', now(), now(), ('{AHEAD}'::bigint + n)::text::xid8
FROM (SELECT n, gen_random_uuid() AS id FROM generate_series(1, :count) AS n) AS new;
INSERT INTO job_attempt (job_id, attempt, outcome, changed_xid)
SELECT id, 1, 'failed', changed_xid FROM job WHERE changed_xid >= '{AHEAD}';
INSERT INTO dead_letter (id, job_id, chain_id, queue, fairness_key, type_name, input, input_version, reason, attempts,
  resolution, resolved_at, changed_xid)
SELECT gen_random_uuid(), id, id, 'default', '', 'test', '{{}}', 1, 'exhausted', 1, 'dismissed', now(), changed_xid
FROM job WHERE changed_xid >= '{AHEAD}'
"""


def fill(engine: Engine, count: int) -> None:
    with engine.begin() as connection:
        connection.execute(text("SET LOCAL session_replication_role = replica"))
        for statement in FILL.split(";\n"):
            connection.execute(text(statement.replace("::", "\\:\\:")), {"count": count})


def streamed(url: str, dataset: str, start: dict[str, Any] | None = None) -> tuple[list[str], dict[str, Any] | None]:
    ids = []
    end = start
    for rows, position in batches(stream(url, dataset), start):
        ids += [row["id" if dataset != "attempts" else "job_id"] for row in rows]
        end = position
    return ids, end


@pytest.mark.parametrize("dataset", ["jobs", "attempts", "dead_letters"])
def test_restored_rows_are_refused_until_restamped_then_read_and_streamed_once(
    engine: Engine, database_url: str, dataset: str
) -> None:
    fill(engine, 25)
    with pytest.raises(RestoredRowsError, match="sa-jobqueue restamp"):
        read(database_url, dataset, upTo="watermark")
    with pytest.raises(RestoredRowsError, match="sa-jobqueue restamp"):
        stream(database_url, dataset).initialOffset()
    assert len(read(database_url, dataset)) == 25
    with Session(engine) as session:
        result = restamp(session, batch_size=10)
        assert (result.jobs, result.attempts, result.dead_letters) == (25, 25, 25)
    assert len(read(database_url, dataset, upTo="watermark")) == 25
    ids, end = streamed(database_url, dataset)
    assert (len(ids), len(set(ids))) == (25, 25)
    with Session(engine) as session:
        assert restamp(session) == type(result)(0, 0, 0)
    assert streamed(database_url, dataset, end)[0] == []


def test_rows_that_are_written_while_restamping_keep_their_numbers(engine: Engine, database_url: str) -> None:
    fill(engine, 5)
    number = text("SELECT CAST(changed_xid AS text) FROM job_attempt WHERE attempt = 9")
    with engine.connect() as writer:
        insert = "INSERT INTO job_attempt (job_id, attempt, outcome) VALUES (job_uuid7(), 9, 'failed')"
        writer.execute(text(insert))
        before = writer.scalar(number)
        with Session(engine) as session:
            restamp(session)
        writer.commit()
    with Session(engine) as session:
        restamp(session)
        assert session.scalar(number) == before
    ids, _ = streamed(database_url, "attempts")
    assert (len(ids), len(set(ids))) == (6, 6)


def test_a_dump_restored_into_a_younger_cluster_is_streamed_once(database_url: str, newest_server: PostgresServer) -> None:
    with connected(database_url) as connection:
        connection.autocommit = True
        connection.execute("DO $$ BEGIN FOR i IN 1..5000 LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$")
    write(database_url, 1, 20)
    place = make_url(database_url)
    assert isinstance(newest_server, EmbeddedServer)
    programs = newest_server.bin_dir
    if not (programs / "pg_dump").exists():
        pytest.skip(f"the PostgreSQL programs in {programs} have no pg_dump")
    source = place.set(drivername="postgresql").render_as_string(hide_password=False)
    with open_server("newest", settings={"fsync": "off"}) as younger:
        target = make_url(younger.url).set(drivername="postgresql").render_as_string(hide_password=False)
        dump = subprocess.run([programs / "pg_dump", source], check=True, capture_output=True).stdout
        options = ["--no-psqlrc", "--quiet", "--single-transaction", "--set", "ON_ERROR_STOP=1"]
        subprocess.run([programs / "psql", *options, target], input=dump, check=True, capture_output=True)
        with pytest.raises(RestoredRowsError):
            stream(younger.url).initialOffset()
        result = CliRunner().invoke(main, ["restamp"], env={"SA_JOBQUEUE_URL": younger.url})
        assert result.exit_code == 0, result.output
        latest = stream(younger.url, startingXid="latest").initialOffset()
        restored = [number for rows, _ in batches(stream(younger.url)) for number in numbers(rows)]
        assert sorted(restored) == list(range(1, 21))
        write(younger.url, 21, 23)
        with connected(younger.url) as connection:  # the counter passes the numbers that the rows had
            connection.autocommit = True
            connection.execute("DO $$ BEGIN FOR i IN 1..8000 LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$")
        new = [number for rows, _ in batches(stream(younger.url), latest) for number in numbers(rows)]
        assert sorted(new) == [21, 22, 23]
        assert len(read(younger.url, "attempts", upTo="watermark")) == 23


def test_doctor_names_the_command_and_the_command_works(engine: Engine, database_url: str) -> None:
    fill(engine, 3)
    assert call(engine, restored_tables) == ["jobs", "attempts", "dead_letters"]

    def advice() -> list[str]:
        return [check.advice for check in examine(make_url(database_url), Job) if check.name == "restored rows"]

    assert [line.rpartition(": ")[2] for line in advice()] == ["sa-jobqueue restamp"]
    result = CliRunner().invoke(main, ["restamp"], env={"SA_JOBQUEUE_URL": database_url})
    assert result.exit_code == 0, result.output
    assert "3 jobs, 3 attempts and 3 dead letters" in result.stdout
    assert advice() == []

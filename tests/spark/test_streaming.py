"""Streams: nothing in flight is skipped, nothing is delivered twice, and no other cluster is taken for this one."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadMaxRows
from sqlalchemy import Engine, text

from sa_jobqueue import JobStatus
from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.ids import uuid7
from sa_jobqueue.pipeline.spark import OtherClusterError, ReadError, stream_lag, streaming
from sa_jobqueue.pipeline.spark.offsets import Offset, StreamLag
from sa_jobqueue.testing.plugin import MakeDatabase
from sa_jobqueue.testing.servers import PostgresServer
from tests.fixtures.database import both_servers
from tests.fixtures.jobs import Jobs
from tests.spark.reading import ALL, ATTEMPT, batches, connected, numbers, stream, write


@both_servers
def test_a_stream_does_not_skip_rows_of_open_transactions(database_url: str) -> None:
    job_stream = stream(database_url)
    write(database_url, 1, 3)
    start = job_stream.initialOffset()
    with connected(database_url) as slow:
        slow.execute(ATTEMPT, (4, 5))
        write(database_url, 6, 9)  # younger, and committed first
        (rows, end), *more = batches(job_stream, start)
        assert (numbers(rows), more) == ([1, 2, 3], [])
        # A reader that trusts what is visible would have to continue behind 9, and never come back for 4 and 5.
        newest = connect_and_ask(database_url, "SELECT max(changed_xid::text::bigint) FROM job_attempt")
        assert newest > Offset.of(end).xid
        assert list(batches(job_stream, end)) == []
    ((rows, end),) = batches(job_stream, end)
    assert numbers(rows) == [4, 5, 6, 7, 8, 9]
    assert list(batches(job_stream, end)) == []


def connect_and_ask(url: str, question: str) -> Any:
    with connected(url) as connection:
        (answer,) = connection.execute(question).fetchone() or (None,)
        return answer


@both_servers
def test_a_stream_starts_at_the_given_position(database_url: str) -> None:
    write(database_url, 1, 2)
    xid = connect_and_ask(database_url, "SELECT max(changed_xid::text::bigint) FROM job_attempt")
    with connected(database_url) as slow:
        slow.execute(ATTEMPT, (3, 3))
        # The oldest row there is may not be the oldest there will be.
        earliest, latest = (stream(database_url, startingXid=where).initialOffset() for where in ("earliest", "latest"))
        write(database_url, 4, 4)
        assert Offset.of(earliest).xid == xid
        assert Offset.of(latest).xid > xid
    assert numbers([row for rows, _ in batches(stream(database_url), earliest) for row in rows]) == [1, 2, 3, 4]
    assert numbers([row for rows, _ in batches(stream(database_url), latest) for row in rows]) == [3, 4]
    assert numbers([row for rows, _ in batches(stream(database_url, startingXid=xid + 1)) for row in rows]) == [3, 4]
    with pytest.raises(InvalidOptionError, match="startingXid: must be at most"):
        stream(database_url, startingXid=xid + 1_000_000).initialOffset()


def test_a_filtered_stream_without_rows_advances(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "EMPTY_WINDOW", 100)
    job_stream = stream(database_url, "jobs", status="dead")
    start = job_stream.initialOffset()

    def pass_by(transactions: int) -> dict[str, Any]:
        with connected(database_url) as connection:
            connection.autocommit = True
            for _ in range(transactions):
                connection.execute("SELECT pg_current_xact_id()")
        return job_stream.latestOffset(start, ALL)

    assert pass_by(20) == start  # not a batch at every trigger
    moved = pass_by(100)
    assert Offset.of(moved).xid >= Offset.of(start).xid + 100
    ((rows, end),) = batches(job_stream, start)
    assert (rows, job_stream.latestOffset(end, ALL)) == ([], end)


def test_the_first_row_seen_does_not_hide_an_older_open_transaction(database_url: str) -> None:
    with connected(database_url) as slow:
        slow.execute(ATTEMPT, (1, 1))
        write(database_url, 2, 2)
        begin = stream(database_url).initialOffset()
    assert numbers([row for rows, _ in batches(stream(database_url), begin) for row in rows]) == [1, 2]


@pytest.mark.slow
@both_servers
@pytest.mark.parametrize("dataset", ["attempts", "jobs"])
def test_a_batch_holds_about_the_allowed_rows_in_whole_transactions(database_url: str, jobs: Jobs, dataset: str) -> None:
    sizes = [1, 3, 3, 4, 12, 1, 1, 5]
    with connected(database_url) as connection:
        for size in sizes:
            connection.execute(ATTEMPT, (1, size))
            for _ in range(size):
                job_id = uuid7()
                connection.execute(
                    "INSERT INTO job (id, chain_id, type_name, chain_type_name) VALUES (%s, %s, 't', 't')", (job_id, job_id)
                )
            connection.execute("UPDATE job SET status = 'cancelled', completed_at = now() WHERE status = 'pending'")
            connection.commit()
            for _ in range(300):  # transactions that are others' matter
                connection.execute("SELECT pg_current_xact_id()")
                connection.commit()
    job_stream = stream(database_url, dataset, maxRowsPerTrigger=7)
    rows_by_batch = [rows for rows, _ in batches(job_stream)]
    assert [len(rows) for rows in rows_by_batch] == [7, 4, 12, 7]
    by_xid = [Counter(row["xid"] for row in rows) for rows in rows_by_batch]
    assert sum(len(job_stream) for job_stream in by_xid) == len(sizes)  # none is in two batches
    # A limit of the engine's own goes first, as when it is asked for one last batch.
    start = job_stream.initialOffset()
    end = job_stream.latestOffset(start, ALL)
    assert (
        len(
            [
                row
                for part in job_stream.partitions(start, end)
                for batch in job_stream.read(part)
                for row in batch.to_pylist()
            ]
        )
        == 30
    )
    parts = stream(database_url, dataset, numPartitions=4).partitions(start, end)
    assert len(parts) == 4
    assert sum(batch.num_rows for part in parts for batch in job_stream.read(part)) == 30
    assert job_stream.latestOffset(start, ReadMaxRows(1)) != start


@both_servers
def test_jobs_are_streamed_when_they_end_and_dead_letters_when_they_change(
    database_url: str, engine: Engine, jobs: Jobs
) -> None:
    finished, dead = jobs.add(JobStatus.COMPLETED), jobs.add(JobStatus.DEAD)
    jobs.add(JobStatus.RUNNING)
    jobs.add(JobStatus.PENDING)
    streams = {name: stream(database_url, name) for name in ("jobs", "dead_letters")}
    ends = {}
    for name, job_stream in streams.items():
        ((rows, ends[name]),) = batches(job_stream)
        expected = {str(finished), str(dead)} if name == "jobs" else {str(dead)}
        assert {row["id" if name == "jobs" else "job_id"] for row in rows} == expected
    with engine.begin() as connection:
        connection.execute(text("UPDATE dead_letter SET resolution = 'redriven', resolved_at = now()"))
        connection.execute(text("UPDATE job SET status = 'pending', completed_at = NULL WHERE status = 'dead'"))
    assert list(batches(streams["jobs"], ends["jobs"])) == []  # it is on its way again
    ((rows, _),) = batches(streams["dead_letters"], ends["dead_letters"])
    assert [row["resolution"] for row in rows] == ["redriven"]
    with engine.begin() as connection:
        connection.execute(text("UPDATE job SET status = 'cancelled', completed_at = now() WHERE status = 'pending'"))
    ((rows, _),) = batches(streams["jobs"], ends["jobs"])
    assert str(dead) in {row["id"] for row in rows}
    narrow = stream(database_url, "jobs", status="completed", queue="default", columns="id,xid")
    assert [[row["id"] for row in rows] for rows, _ in batches(narrow)] == [[str(finished)]]


def test_only_rows_deleted_before_being_read_are_missed(database_url: str, engine: Engine, jobs: Jobs) -> None:
    deleted, deleted_later, stays = (jobs.add(JobStatus.COMPLETED) for _ in range(3))
    job_stream = stream(database_url, "jobs")
    start = job_stream.initialOffset()
    delete = text("DELETE FROM job WHERE id = :id")
    with engine.begin() as connection:
        connection.execute(delete, {"id": deleted})  # by an archive, say
    end = job_stream.latestOffset(start, ALL)
    with engine.begin() as connection:
        connection.execute(delete, {"id": deleted_later})  # between the planning of a batch and its reading
    rows = [
        row for part in job_stream.partitions(start, end) for batch in job_stream.read(part) for row in batch.to_pylist()
    ]
    assert [row["id"] for row in rows] == [str(stays)]
    later = jobs.add(JobStatus.COMPLETED)
    ((rows, _),) = batches(job_stream, end)
    assert [row["id"] for row in rows] == [str(later)]


def test_a_checkpoint_of_another_cluster_is_refused(
    oldest_server: PostgresServer, newest_server: PostgresServer, make_database: MakeDatabase, tmp_path: Path
) -> None:
    here = make_database(oldest_server)
    job_stream = stream(here)
    write(here, 1, 1)
    ((_, end),) = batches(job_stream)
    now = Offset.of(end)
    ahead = Offset(now.system, 2**63 + 5).as_json()
    assert Offset.of(ahead).xid == 2**63 + 5
    with pytest.raises(OtherClusterError, match="it was restored, or a replica was promoted"):
        job_stream.latestOffset(ahead, ALL)
    with pytest.raises(OtherClusterError, match="it was restored, or a replica was promoted"):
        job_stream.partitions(end, ahead)
    with pytest.raises(OtherClusterError, match="version 2"):
        job_stream.latestOffset({"v": 2}, ALL)
    # A replica that has not come so far has nothing yet; only what was planned already must be there.
    behind = StreamLag(now.xid - 1, now.xid - 1, now.system, is_replica=True)
    now.check(behind)
    with pytest.raises(ReadError, match="replica has replayed transactions up to"):
        now.check(behind, must_be_there=True)
    if oldest_server is newest_server:
        return
    existing = stream(make_database(newest_server))
    with pytest.raises(OtherClusterError, match=r"belongs to cluster .*; start the query with a new checkpoint"):
        existing.latestOffset(end, ALL)
    with pytest.raises(OtherClusterError, match="belongs to cluster"):
        existing.partitions(end, ahead)
    (part,) = job_stream.partitions(job_stream.initialOffset(), end)
    with pytest.raises(OtherClusterError, match="belongs to cluster"):
        next(existing.read(part))  # an executor may be sent elsewhere than the driver


@both_servers
def test_stream_lag_names_the_transaction_holding_the_stream_back(database_url: str) -> None:
    with connected(database_url) as slow:
        slow.execute("SET application_name = 'slow import'")
        slow.execute(ATTEMPT, (1, 1))
        write(database_url, 2, 2)
        lag = stream_lag(database_url)
        assert lag.transactions_behind >= 2
        assert lag.holder is not None
        assert (lag.holder.pid, lag.holder.application_name) == (slow.info.backend_pid, "slow import")
        assert lag.holder.open_for is not None
        offset = stream(database_url).reportLatestOffset()
        assert offset is not None
        assert offset["held_by"]["pid"] == slow.info.backend_pid
        assert Offset.of(offset).xid == lag.xid


@pytest.mark.parametrize(
    ("dataset", "options", "reason"),
    [
        ("blockers", {}, "read them as a batch"),
        ("jobs", {"status": "completed,pending"}, "a stream of jobs is of ended ones"),
        ("attempts", {"queue": "a"}, "nothing that it could select by"),
        ("attempts", {"createdAfter": "2026-01-01"}, "belongs to spark.read"),
        ("attempts", {"startingXid": "earlist"}, "must be earliest, latest or a transaction id, got 'earlist'"),
        ("attempts", {"startingXid": "-5"}, "must be earliest, latest or a transaction id, got '-5'"),
        ("attempts", {"maxRowsPerTrigger": "0"}, "must be from 1"),
    ],
)
def test_unsupported_stream_options_are_refused(dataset: str, options: dict[str, str], reason: str) -> None:
    with pytest.raises(InvalidOptionError, match=reason):
        stream("postgresql://nobody@127.0.0.1:1/none", dataset, **options)


def test_a_query_delivers_each_row_once_through_failures_and_restarts(
    spark: SparkSession, database_url: str, tmp_path: Path
) -> None:
    """The open transaction, the limit, AvailableNow, a batch that fails half way, and a restart from the checkpoint."""
    delivered: list[int] = []
    fails = {1}

    def take(frame: DataFrame, batch_id: int) -> None:
        rows = [row["attempt"] for row in frame.select("attempt").collect()]
        if batch_id in fails:
            fails.discard(batch_id)
            raise RuntimeError("the sink fails, after it has seen its rows")
        delivered.extend(rows)

    def run() -> None:
        reader = spark.readStream.format("jobqueue").option("url", database_url).option("maxRowsPerTrigger", 4)
        query = (
            reader.load("attempts")
            .writeStream.foreachBatch(take)
            .option("checkpointLocation", str(tmp_path))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    for first in range(1, 9, 2):
        write(database_url, first, first + 1)
    with connected(database_url) as slow:
        slow.execute(ATTEMPT, (100, 101))
        write(database_url, 9, 10)
        with pytest.raises(StreamingQueryException, match="the sink fails"):
            run()
        assert sorted(delivered) == [1, 2, 3, 4]
        run()
        assert sorted(delivered) == list(range(1, 9))
    run()
    assert sorted(delivered) == [*range(1, 11), 100, 101]

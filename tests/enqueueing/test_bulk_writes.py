"""The ledger of bulk writes: listed, shown and pruned."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from click.testing import CliRunner
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session

from sa_jobqueue import Job
from sa_jobqueue.cli import main
from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.ids import uuid7
from sa_jobqueue.operations.pages import every_item
from sa_jobqueue.pipeline.operations.bulk import commit_write
from sa_jobqueue.pipeline.operations.writes import (
    WriteCounts,
    count_write_chains,
    list_rejected_rows,
    list_writes,
    prune_writes,
)
from tests.fixtures.database import both_servers, own_database
from tests.fixtures.jobs import Jobs

pytestmark = own_database

DAY = timedelta(days=1)
WRITES = [("old", 0, 100), ("new", 0, 1), ("stream", 0, 100), ("stream", 1, 90), ("stream", 2, 80)]
"""Id, batch and age in days."""


@pytest.fixture
def ledger(session: Session) -> Session:
    write: Any = Job.Write
    rejected: Any = Job.Reject
    for write_id, sequence, days in WRITES:
        session.add(write(write_id=write_id, sequence=sequence, staged=3, enqueued=1, duplicates=0, rejected=2))
        for row in range(2):
            key = {"write_id": write_id, "sequence": sequence, "task_id": 7, "row": row}
            session.add(rejected(**key, field="input", reason="is not JSON", record="{}"))
        session.flush()
        aged = (
            "UPDATE job_bulk_write SET written_at = now() - make_interval(0, 0, 0, :d) WHERE write_id = :w AND sequence = :n"
        )
        session.execute(text(aged), {"d": days, "w": write_id, "n": sequence})
    session.commit()
    return session


def keys(rows: Any) -> list[tuple[str, int]]:
    return [(row.write_id, row.sequence) for row in rows]


@both_servers
async def test_bulk_writes_are_listed_newest_first_page_by_page(
    ledger: Session, async_sessions: async_sessionmaker[AsyncSession]
) -> None:
    expected = [("new", 0), ("stream", 2), ("stream", 1), ("stream", 0), ("old", 0)]
    assert keys(list_writes(ledger)) == expected
    assert keys(every_item(lambda after: list_writes(ledger, after=after, limit=1))) == expected
    assert keys(list_writes(ledger, write_id="stream")) == expected[1:4]
    assert keys(list_writes(ledger, write_id="stream", sequence=1)) == [("stream", 1)]
    rejected = every_item(lambda after: list_rejected_rows(ledger, "stream", after=after, limit=1))
    assert [(row.sequence, row.row) for row in rejected] == [(batch, row) for batch in range(3) for row in range(2)]
    async with async_sessions() as session:
        assert keys(await session.run_sync(list_writes)) == expected
    with pytest.raises(InvalidOptionError, match="after"):
        list_writes(ledger, after="new")  # type: ignore[arg-type]


@both_servers
def test_old_bulk_writes_are_pruned_except_the_last_batch_of_a_stream(ledger: Session) -> None:
    pruned = [("old", 0), ("stream", 0), ("stream", 1)]
    assert prune_writes(ledger, older_than=50 * DAY, dry_run=True).ids == pruned
    assert len(list_writes(ledger).items) == len(WRITES)
    assert prune_writes(ledger, older_than=50 * DAY).ids == pruned
    assert keys(list_writes(ledger)) == [("new", 0), ("stream", 2)]
    assert list_rejected_rows(ledger, "old").items == []
    assert len(list_rejected_rows(ledger, "stream").items) == 2
    assert prune_writes(ledger, older_than=50 * DAY).changed == 0
    with pytest.raises(InvalidOptionError, match="older_than: must be a timedelta above zero"):
        prune_writes(ledger, older_than=timedelta(0))


@both_servers
async def test_the_chains_of_a_bulk_write_are_counted_by_state(
    session: Session, jobs: Jobs, async_sessions: async_sessionmaker[AsyncSession]
) -> None:
    def stage(write_id: str, rows: int) -> None:
        for row in range(rows):
            staged: Any = Job.Stage
            columns = {"write_id": write_id, "sequence": 0, "task_id": 7, "row": row, "id": uuid7()}
            session.add(staged(**columns, type_name="test"))
        session.commit()
        commit_write(session, write_id=write_id, tasks={7: rows})
        session.commit()

    stage("before", 2)
    stage("nightly", 6)
    stage("after", 3)
    jobs.add()
    assert count_write_chains(session, "none") is None
    assert count_write_chains(session, "nightly") == WriteCounts(open=6, completed=0, dead=0, cancelled=0, deleted=0)
    ids = [row.id for row in session.execute(text("SELECT id FROM job ORDER BY created_at, id"))][2:8]
    running = "UPDATE job SET status = 'running', leased_by = 'w:1', started_at = now(), attempt = 1 WHERE id = :id"
    ended = "UPDATE job SET status = :status, leased_by = NULL, completed_at = now(), chain_completed_at = now()"
    for job_id, status in zip(ids, ("completed", "dead", "cancelled"), strict=False):
        session.execute(text(running), {"id": job_id})
        session.execute(text(f"{ended} WHERE id = :id"), {"id": job_id, "status": status})
    session.execute(text("DELETE FROM job WHERE id = :id"), {"id": ids[0]})
    session.commit()
    progress = count_write_chains(session, "nightly")
    assert progress == WriteCounts(open=3, completed=0, dead=1, cancelled=1, deleted=1)
    assert progress.total == 6
    async with async_sessions() as other_session:
        assert await other_session.run_sync(count_write_chains, "nightly") == progress
        assert await other_session.run_sync(count_write_chains, "nightly", sequence=1) is None


def test_the_command_line_lists_shows_and_prunes_bulk_writes(
    ledger: Session, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SA_JOBQUEUE_URL", database_url)

    def run(*arguments: str) -> Any:
        result = CliRunner().invoke(main, ["writes", *arguments])
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout) if "--json" in arguments else result.stdout

    first = run("list", "--limit", "2", "--json")
    assert [bulk_write["write_id"] for bulk_write in first["writes"]] == ["new", "stream"]
    after = [str(part) for part in first["next"]]
    assert [bulk_write["sequence"] for bulk_write in run("list", "--json", "--after", *after)["writes"]] == [1, 0, 0]
    assert "5 writes" in run("list")
    bulk_write = run("show", "stream", "--sequence", "1", "--json")
    assert (bulk_write["rejected"], [row["reason"] for row in bulk_write["rejected_rows"]]) == (2, ["is not JSON"] * 2)
    assert "2 rejected rows" in run("show", "old")
    assert CliRunner().invoke(main, ["writes", "show", "none"]).exit_code == 1
    assert len(run("prune", "--older-than", "50d", "--dry-run", "--json")["would_be_pruned"]) == 3
    assert run("prune", "--older-than", "50d") == "3 writes pruned\n"


def test_rejected_rows_are_shown_without_redacted_records(
    ledger: Session, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SA_JOBQUEUE_URL", database_url)
    monkeypatch.setenv("SA_JOBQUEUE_REDACT", "*")
    result = CliRunner().invoke(main, ["writes", "show", "old", "--json"])
    assert {row["record"] for row in json.loads(result.stdout)["rejected_rows"]} == {"[redacted]"}

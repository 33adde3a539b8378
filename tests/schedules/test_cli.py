"""`sa-jobqueue schedules`: what people see of schedules, and what they can do to them."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest
from sqlalchemy import Engine, text

from tests.fixtures.commands import Run, document, run
from tests.fixtures.transactions import write

__all__ = ["run"]  # a fixture

APPLICATION = """
from sa_jobqueue import JobQueue
jobs = JobQueue()

@jobs.cron("30 2 * * *", time_zone="Europe/Prague", name="nightly")
@jobs.handler("report")
def report() -> None: ...
"""


@pytest.fixture
def synced(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Synchronise an application's one schedule."""
    (tmp_path / "nightly_app.py").write_text(APPLICATION)
    monkeypatch.syspath_prepend(str(tmp_path))
    dry = run("schedules", "sync", "nightly_app:jobs", "--dry-run").stdout
    assert "nightly: would be created" in dry
    assert document(run("schedules", "list", "--json")) == {"schedules": []}
    assert document(run("schedules", "sync", "nightly_app:jobs", "--json"))["created"] == ["nightly"]


@pytest.mark.usefixtures("synced")
def test_schedules_are_listed_and_shown_with_their_times(run: Run) -> None:
    table = run("schedules", "list").stdout
    for expected in ("1 schedule", "nightly", "30 2 * * *", "Europe/Prague", "report", "code"):
        assert expected in table
    schedule = document(run("schedules", "show", "nightly", "--json"))
    assert (schedule["misfire_policy"], schedule["source"], schedule["error"]) == ("one", "code", None)
    assert "next_fire_at" in run("schedules", "show", "nightly").stdout
    command = ["schedules", "next", "nightly", "--after", "2026-03-28T00:00:00Z", "--count", "3"]
    times = document(run(*command, "--json"))["times"]
    assert times == ["2026-03-28T01:30:00+00:00", "2026-03-29T01:00:00+00:00", "2026-03-30T00:30:00+00:00"]
    clocks = run(*command).stdout
    assert "Sat 2026-03-28 02:30 CET" in clocks
    assert "Sun 2026-03-29 03:00 CEST" in clocks
    assert "no such schedule: 'x'" in run("schedules", "show", "x", status=1).stderr


@pytest.mark.usefixtures("synced")
def test_schedules_are_paused_resumed_run_and_deleted(run: Run, engine: Engine) -> None:
    assert "1 schedule paused" in run("schedules", "pause", "nightly", "--by", "ops").stdout
    assert "paused by ops" in run("schedules", "list").stdout
    assert len(document(run("schedules", "run", "nightly", "--json"))["jobs"]) == 1
    span = ["--since", "2026-03-28", "--until", "2026-03-31"]
    assert "3 jobs enqueued" in run("schedules", "run", "nightly", *span).stdout
    assert "0 jobs enqueued" in run("schedules", "run", "nightly", *span).stdout
    assert "--since: " in run("schedules", "run", "nightly", "--since", "2026-03-28", status=2).stderr
    assert document(run("schedules", "resume", "nightly", "--json")) == {"resumed": ["nightly"]}
    schedule = document(run("schedules", "show", "nightly", "--json"))
    assert schedule["paused_at"] is None
    assert datetime.fromisoformat(schedule["next_fire_at"])
    write(engine, "UPDATE schedule SET cron = 'never', error = 'cron: is none', next_fire_at = null")
    assert "cannot fire: cron: is none" in run("schedules", "list").stdout
    with engine.begin() as connection:
        old = "INSERT INTO schedule (name, type_name, cron, source) VALUES ('old', 't', '@daily', 'code')"
        connection.execute(text(old))
    assert "old: not declared, not changed" in run("schedules", "sync", "nightly_app:jobs").stdout
    assert "2 schedules deleted" in run("schedules", "delete", "nightly", "old").stdout
    assert document(run("schedules", "list", "--json")) == {"schedules": []}

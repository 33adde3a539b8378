"""`sa-jobqueue top`, driven as by a person at a terminal, on an unhealthy queue."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from sqlalchemy import Engine, create_engine, event, func, insert, make_url, text, update
from textual.widgets import DataTable, Static

from sa_jobqueue import Job, JobStatus
from sa_jobqueue.cli import main
from sa_jobqueue.cli._top import ReadOverview, TopApp
from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.observe.health.overview import overviews
from tests.fixtures.jobs import WORKER, Jobs
from tests.fixtures.workers import until

SIZE = (150, 45)
ERROR = {"type": "ConnectionError", "message": "[red]no route\nto host", "traceback": ""}


@pytest.fixture
def unhealthy(engine: Engine, jobs: Jobs) -> Jobs:
    """Make a queue unhealthy: a queue unserved, a worker silent, a job that hangs, attempts that fail, a dead letter."""
    jobs.add_worker(WORKER, concurrency=2)
    jobs.add_worker("quiet:1", silent_for=60, concurrency=5)
    jobs.add_many(3, queue="mail")
    hanging = jobs.add(JobStatus.RUNNING, type_name="hangs")
    jobs.add(JobStatus.RUNNING, type_name="short")
    dead = jobs.add(JobStatus.DEAD, error=ERROR, fingerprint="f")
    with engine.begin() as connection:
        connection.execute(update(Job).where(Job.id == hanging).values(started_at=func.now() - timedelta(hours=2)))
        for attempt, outcome in enumerate(("failed", "snoozed", "timed_out"), 1):
            row = {"job_id": dead, "attempt": attempt, "outcome": outcome}
            connection.execute(insert(Job.Attempt).values(row | {"error": ERROR if outcome == "failed" else None}))
    return jobs


def cells(app: TopApp, name: str) -> list[list[str]]:
    table = app.query_one(f"#{name}", DataTable)
    return [[str(cell) for cell in table.get_row_at(row)] for row in range(table.row_count)]


def words(app: TopApp) -> str:
    return str(app.query_one("#summary", Static).render())


async def test_top_shows_problems_to_a_read_only_role_and_obeys_its_keys(
    engine: Engine, unhealthy: Jobs, database_url: str
) -> None:
    with engine.begin() as connection:
        connection.execute(text("DROP ROLE IF EXISTS top_observer"))
        connection.execute(text("CREATE ROLE top_observer LOGIN"))
        connection.execute(text("GRANT SELECT ON ALL TABLES IN SCHEMA public TO top_observer"))
    observer = create_engine(make_url(database_url).set(username="top_observer"))
    statements: list[str] = []
    event.listen(observer, "before_cursor_execute", lambda *given: statements.append(given[2]))
    connections: list[object] = []
    event.listen(observer, "connect", lambda *given: connections.append(given[0]))
    app = TopApp(lambda: overviews(observer), interval=timedelta(seconds=60))
    async with app.run_test(size=SIZE) as pilot:
        await until(lambda: app.reads == 1, what="the first refresh")
        assert words(app).startswith("CRITICAL")
        assert "queue_unserved" in words(app)
        assert "every 60 s" in words(app)
        queues = {row[0]: row[1:4] for row in cells(app, "queues")}
        assert queues["mail"][::2] == ["3", "0"]
        workers = {row[0]: row[2:4] for row in cells(app, "workers")}
        assert workers == {WORKER: ["running", "2/2"], "quiet:1": ["silent", "0/5"]}
        assert [row[0] for row in cells(app, "longest")] == ["hangs", "short"]
        assert cells(app, "longest")[0][1].startswith("2 h")
        failures = cells(app, "failures")
        assert [row[3] for row in failures] == ["3", "1"]  # a snooze is not a failure
        assert failures[0][2] == "timed out"
        assert failures[1][2:5:2] == ["ConnectionError: [red]no route", "dead"]  # as it is, not as markup

        each = len(statements)
        await pilot.press("r")
        await until(lambda: app.reads == 2, what="another refresh")
        assert len(statements) <= 2 * each
        assert each < 25
        assert len(connections) == 1

        await pilot.press("tab", "tab")  # to those that run longest
        await pilot.press("s")
        assert [row[0] for row in cells(app, "longest")] == ["short", "hangs"]
        assert str(app.query_one("#longest", DataTable).border_title) == "longest running, by time"
        await pilot.press("S")
        assert [row[0] for row in cells(app, "longest")] == ["hangs", "short"]
        await pilot.press("minus")
        assert "every 30 s" in words(app)
        await pilot.press("plus", "plus")
        assert "every 60 s" in words(app)
        await pilot.press("p")
        assert "paused" in words(app)
        await pilot.press("q")
    observer.dispose()
    with engine.begin() as connection:
        connection.execute(text("DROP OWNED BY top_observer"))
        connection.execute(text("DROP ROLE top_observer"))


async def test_top_reports_a_failed_refresh_and_reconnects(engine: Engine, jobs: Jobs) -> None:
    jobs.add()
    entered: list[int] = []

    @contextmanager
    def connect() -> Iterator[ReadOverview]:
        entered.append(1)
        with overviews(engine) as overview:
            yield overview

    app = TopApp(connect, interval=timedelta(milliseconds=100))
    async with app.run_test(size=SIZE):
        await until(lambda: app.reads >= 2, what="refreshes")
        assert len(entered) == 1
        with engine.begin() as connection:
            others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
            connection.execute(text(f"{others} AND pid <> pg_backend_pid()"))
        await until(lambda: "cannot read the queue: " in words(app), what="a failure")
        assert cells(app, "queues")[0][0] == "default"  # what was seen last
        await until(lambda: "cannot read" not in words(app), what="a refresh that works")
    assert len(entered) == 2


def test_top_writes_a_screenshot_and_names_its_missing_extra(
    database_url: str, unhealthy: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def call(*arguments: str) -> Any:
        return CliRunner().invoke(main, ["top", *arguments], env={"SA_JOBQUEUE_URL": database_url})

    path = tmp_path / "top.svg"
    result = call("--screenshot", str(path))
    assert result.exit_code == 0, result.output
    svg = path.read_text()
    assert svg.startswith("<svg")
    assert all(word in svg for word in ("CRITICAL", "mail", "hangs"))
    connect: Callable[[], AbstractContextManager[ReadOverview]] = lambda: overviews(create_engine(database_url))  # noqa: E731
    with pytest.raises(InvalidOptionError, match=r"interval: must be at least 0\.1 s, got 0 s"):
        TopApp(connect, interval=timedelta(0))
    monkeypatch.setitem(__import__("sys").modules, "sa_jobqueue.cli._top", None)
    missing = call()
    assert missing.exit_code == 1
    assert 'pip install "sa-jobqueue[top]"' in missing.output

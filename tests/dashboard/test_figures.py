"""Each figure is exact: a count that stopped is "at least", and a figure that was not measured is never 0."""

from __future__ import annotations

import re
from dataclasses import replace
from threading import Thread
from typing import Any

import pytest
from click.testing import CliRunner
from sqlalchemy import Engine, text
from sqlalchemy.exc import OperationalError

from sa_jobqueue import JobStatus
from sa_jobqueue.cli import main
from sa_jobqueue.dashboard import Source, dashboard
from sa_jobqueue.display.printable import byte_size
from sa_jobqueue.errors import JobQueueError
from sa_jobqueue.observe.health import Health, health, measuring
from tests.dashboard.conftest import Client, everyone
from tests.dashboard.pages import words
from tests.fixtures.database import own_database
from tests.fixtures.jobs import WORKER, Jobs
from tests.fixtures.workers import wait_until

pytestmark = own_database

TIME = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC"


def cells(page: str, queue: str) -> list[str]:
    """Return the text of the row of a queue, from its first figure on."""
    row = re.findall(rf'(?s)<th scope="row"><a [^>]*>{queue}</a>.*?</tr>', page)[0]
    return [words(f"<h1>{cell}").strip() for cell in re.findall("(?s)<td[^>]*>(.*?)</td>", row)]


def test_an_unmeasured_figure_is_not_shown_as_zero(engine: Engine, jobs: Jobs) -> None:
    jobs.add_worker(WORKER, queues=["mail"])
    answers: list[Any] = [JobQueueError("it is down")]

    def read() -> Health:
        if isinstance(answers[0], Exception):
            raise answers[0]
        measured: Health = answers[0]
        return measured

    source = Source(name="queue", engine=engine)
    client = Client(dashboard([source], authorize=everyone))

    def measure(value: Any) -> None:
        answers[0] = value
        source.sampler.__init__(read)  # type: ignore[misc]

    measured = health(engine)
    measure(measured)
    assert cells(client.page("/queue/queues"), "mail")[1:4] == ["0", "-", "0"]
    partly = replace(measured, missing=("queues", "rates", "unserved"), queues=[], unserved=[])
    for value in (JobQueueError("it is down"), partly):
        measure(value)
        assert cells(client.page("/queue/queues"), "mail")[1:5] == ["-"] * 4
        page_text = client.page("/queue/overview")
        assert not re.findall(r"<dt>(Due|Oldest due for|Enqueued per second)</dt><dd>\s*[\d,.]+", page_text)
    # A report that failed leaves the figures of the last one, with their age.
    measure(measured)
    client.page("/queue/overview")
    source.sampler._tried_at = float("-inf")
    answers[0] = JobQueueError("it is down")
    page_text = words(client.page("/queue/overview"))
    assert re.search(r"it is down Below is the last one, .+ old\.", page_text), page_text
    assert "Due 0" in page_text


def test_truncated_counts_are_shown_as_lower_bounds_with_their_time(
    engine: Engine, database_url: str, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measuring, "COUNTED", 5)
    monkeypatch.setattr(measuring, "MAX_EXAMINED", 8)
    jobs.add_worker(WORKER, queues=["default"])
    jobs.add_many(12)
    for _ in range(6):
        jobs.add(JobStatus.DEAD)
    client = Client(dashboard(engine, authorize=everyone))
    shown = client.page("/queue/overview")
    assert cells(shown, "default")[0] == "5+"
    text = words(shown)
    assert re.search(rf"Health \w+ at {TIME}, measured in .+ Rates are those of the last .+, at least\.", text), text
    assert "Due 5+" in text
    assert "Dead letters unresolved 5+" in text
    assert "Jobs of test died At least 5 dead letters" in text
    queues = client.page("/queue/queues")
    assert cells(queues, "default")[1] == "5+"
    assert re.search(rf"Backlog and rates as of {TIME}\. Rates .+, at least\.", words(queues))
    assert re.search(rf"Measured at {TIME}\. Rows, sizes and waste are estimates", words(client.page("/queue/storage")))
    assert re.search(r"Measured .+ ago, in ", words(client.page("/queue/limits")))
    for page in ("jobs", "chains", "workers", "dead-letters", "schedules", "audit", "job-types"):
        assert re.search(rf"Rendered {TIME}, by the database's clock", words(client.page(f"/queue/{page}"))), page
    result = CliRunner().invoke(main, ["health", "--url", database_url])
    assert "5 or more unresolved" in result.output, result.output


def _is_vacuuming(engine: Engine) -> bool:
    with engine.connect() as connection:
        phases = text("SELECT count(*) FROM pg_stat_progress_vacuum WHERE phase = 'scanning heap'")
        return bool(connection.scalar(phases))


def test_storage_shows_the_report_and_a_running_vacuum(engine: Engine, jobs: Jobs) -> None:
    jobs.add_many(2000)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("UPDATE job SET priority = 1"))
        connection.execute(text("SELECT pg_stat_force_next_flush()"))  # rows reported after ANALYZE would count twice
        connection.execute(text("ANALYZE job"))
        pid = connection.scalar(text("SELECT pg_backend_pid()"))
        connection.execute(text("SET vacuum_cost_delay = '100ms'"))
        connection.execute(text("SET vacuum_cost_limit = 1"))

        def run_vacuum() -> None:
            with pytest.raises(OperationalError, match="canceling statement"):
                connection.execute(text("VACUUM job"))

        vacuum = Thread(target=run_vacuum)
        vacuum.start()
        try:
            wait_until(lambda: _is_vacuuming(engine), description="the vacuum")
            source = Source(name="queue", engine=engine)
            page = Client(dashboard([source], authorize=everyone)).page("/queue/storage")
        finally:
            with engine.connect() as other_connection:
                other_connection.execute(text("SELECT pg_cancel_backend(:pid)"), {"pid": pid})
            vacuum.join(20)
    measured = source.sampler.sample().value
    assert measured is not None
    for table in measured.tables:
        row = words("<h1>" + re.findall(rf'(?s)<tr><th scope="row">{table.name}</th>.*?</tr>', page)[0]).split()
        assert row[1:4] == [f"{int(number):,}" for number in (table.live, table.dead, table.vacuum_at)]
        assert " ".join(row[4:8]) == f"{byte_size(table.bytes)}, {byte_size(table.index_bytes)}"
    (job,) = (table for table in measured.tables if table.name.endswith("job"))
    assert job.live == 2000
    assert job.vacuuming == "scanning heap"
    assert "scanning heap" in page

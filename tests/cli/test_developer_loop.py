"""A developer's day: enqueue by hand, run a worker from a script, have it restart at each change."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from sa_jobqueue import JobStatus
from sa_jobqueue.cli import main
from tests.fixtures.jobs import Jobs
from tests.fixtures.programs import Process, Programs
from tests.fixtures.workers import PATIENCE, wait_until

APPLICATION = """
from pydantic import BaseModel
from sa_jobqueue import JobQueue

jobs = JobQueue()

class Order(BaseModel):
    id: int

@jobs.handler("ship", queue="orders", priority=3)
def ship(order: Order) -> str:
    return "VERSION"
"""
SCRIPT = """
import os
from sqlalchemy import create_engine
from loop_app import jobs
from sa_jobqueue import Worker
Worker(jobs, create_engine(os.environ["DATABASE_URL"])).run_sync()
print("stopped")
"""


@pytest.fixture
def application(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    file = tmp_path / "loop_app.py"
    file.write_text(APPLICATION)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delenv("SA_JOBQUEUE_URL", raising=False)
    yield file
    sys.modules.pop("loop_app", None)


def call(url: str, *arguments: str, input_text: str | None = None) -> Result:
    return CliRunner().invoke(main, ["enqueue", *arguments], input=input_text, env={"DATABASE_URL": url})


def test_enqueue_command_validates_the_payload_with_its_handler(application: Path, database_url: str, jobs: Jobs) -> None:
    result = call(
        database_url, "ship", '{"id": 7}', "--app", "loop_app:jobs", "--delay", "1h", "--fairness-key", "a", "--json"
    )
    assert result.exit_code == 0, result.output
    row = jobs.get(json.loads(result.stdout)["id"])
    assert (row["type_name"], row["input"], row["queue"], row["priority"]) == ("ship", {"id": 7}, "orders", 3)
    assert row["fairness_key"] == "a"
    assert row["scheduled_at"] > row["created_at"]
    for arguments, expected in (
        (["ship", '{"id": "x"}', "--app", "loop_app:jobs"], "id"),
        (["shop", "{}", "--app", "loop_app:jobs"], "'shop'"),
        (["ship", "{", "--app", "loop_app:jobs"], "must be JSON, such as"),
        (["ship", '{"id": 7}', "--app", "loop_app:Order"], "is a class, Order, not a JobQueue"),
        (["ship", '{"id": 7}', "--app", "loop_app:jobs", "--priority", "10"], "priority"),
    ):
        refused = call(database_url, *arguments)
        assert (refused.exit_code, expected in refused.stderr) == (2, True), refused.output
    assert jobs.count() == 1


def test_enqueue_command_without_app_accepts_any_type_and_a_piped_payload(database_url: str, jobs: Jobs) -> None:
    result = call(database_url, "anything", "-", "--queue", "other", input_text='["a", 1]')
    assert result.exit_code == 0, result.output
    row = jobs.get(result.stdout.strip())
    assert (row["type_name"], row["input"], row["queue"]) == ("anything", ["a", 1], "other")
    assert jobs.get(call(database_url, "tick").stdout.strip())["input"] is None
    nowhere = CliRunner().invoke(main, ["enqueue", "tick"], env={"DATABASE_URL": "", "SA_JOBQUEUE_URL": ""})
    assert "set SA_JOBQUEUE_URL or DATABASE_URL, or pass --url" in nowhere.stderr


def test_sa_jobqueue_url_takes_precedence_over_database_url(database_url: str, jobs: Jobs) -> None:
    elsewhere = {"SA_JOBQUEUE_URL": database_url, "DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none"}
    assert CliRunner().invoke(main, ["enqueue", "tick"], env=elsewhere).exit_code == 0
    assert jobs.count() == 1


@contextmanager
def started(programs: Programs, folder: Path, url: str, *command: str) -> Iterator[Process]:
    process = programs.start(*command, cwd=folder, env={"SA_JOBQUEUE_URL": None, "DATABASE_URL": url})
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        if process.stdout is not None:
            process.stdout.close()
        process.wait(PATIENCE)


def test_a_worker_run_from_a_script_stops_on_sigterm(
    application: Path, database_url: str, programs: Programs, jobs: Jobs
) -> None:
    job_id = jobs.add(type_name="ship", queue="orders", input={"id": 1})
    (application.parent / "script.py").write_text(SCRIPT)
    with started(programs, application.parent, database_url, "script.py") as process:
        wait_until(lambda: jobs.status(job_id) is JobStatus.COMPLETED, description="the job")
        process.terminate()
        assert process.communicate(timeout=PATIENCE)[0].endswith("stopped\n")
    assert process.returncode == 0


@pytest.mark.parametrize("processes", ["1", pytest.param("2", marks=pytest.mark.long)])
def test_worker_import_option_registers_handlers_of_other_modules(
    application: Path, database_url: str, programs: Programs, jobs: Jobs, processes: str
) -> None:
    more = "from loop_app import jobs\n@jobs.handler('more')\ndef more(payload: None) -> None: ...\n"
    (application.parent / "loop_more.py").write_text(more)
    job_id = jobs.add(type_name="more")
    command = ["-m", "sa_jobqueue", "worker", "loop_app:jobs", "--import", "loop_more", "--processes", processes]
    with started(
        programs, application.parent, database_url, *command, "--queues", "default", "--poll-interval", "100ms"
    ) as process:
        wait_until(lambda: jobs.status(job_id) is JobStatus.COMPLETED, description="the job")
        process.terminate()
        process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    missing = CliRunner().invoke(main, ["worker", "loop_app:jobs", "--import", "nothing", "--url", database_url])
    assert "module 'nothing' not found" in missing.stderr


@pytest.mark.long
def test_a_worker_restarts_when_its_code_changes(
    application: Path, database_url: str, programs: Programs, jobs: Jobs
) -> None:
    command = ["-m", "sa_jobqueue", "worker", "loop_app:jobs", "--reload", "--poll-interval", "100ms"]

    def output() -> Any:
        job_id = jobs.add(type_name="ship", queue="orders", input={"id": 1})
        wait_until(lambda: jobs.status(job_id) is JobStatus.COMPLETED, description="the job")
        return jobs.get(job_id)["output"]

    with started(programs, application.parent, database_url, *command, "--shutdown-timeout", "1s") as process:
        assert output() == "VERSION"
        application.write_text(APPLICATION.replace("VERSION", "another"))
        wait_until(lambda: output() == "another", description="the new code")
        process.send_signal(signal.SIGINT)
        assert "reloading: " in process.communicate(timeout=PATIENCE)[0]


def test_reloading_is_for_one_process(application: Path, database_url: str) -> None:
    command = ["worker", "loop_app:jobs", "--reload", "--processes", "2", "--url", database_url]
    assert "--reload is for one process" in CliRunner().invoke(main, command).stderr

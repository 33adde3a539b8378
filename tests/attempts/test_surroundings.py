"""What surrounds a worker or a command: libpq's environment, access tokens, closed streams, terminals that are not UTF-8."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine, create_engine, event, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from sa_jobqueue import Job, JobQueue, JobStatus, Worker, enqueue_many
from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.operations import cancel_jobs
from sa_jobqueue.statements._parts import BATCH
from tests.fixtures.jobs import Jobs, enqueue
from tests.fixtures.transactions import call
from tests.fixtures.workers import quick

pytestmark = pytest.mark.every_python


def parameters(engine: Engine) -> dict[str, str]:
    arguments = dict(engine.dialect.create_connect_args(engine.url)[1])
    return {name: str(value) for name, value in arguments.items() if isinstance(value, (str, int))}


async def test_a_worker_connects_by_the_environment_of_libpq(
    engine: Engine, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {"host": "PGHOST", "port": "PGPORT", "user": "PGUSER", "password": "PGPASSWORD", "dbname": "PGDATABASE"}
    for name, value in parameters(engine).items():
        if name in names:
            monkeypatch.setenv(names[name], value)
    queue = JobQueue()

    @queue.handler("a")
    async def a(session: AsyncSession) -> str:
        return str(await session.scalar(select(func.current_database())))

    bare = create_engine("postgresql+psycopg://")
    (job_id,) = enqueue(engine, a.job())
    await Worker(queue, bare, options=quick()).run_until_idle()
    bare.dispose()
    assert jobs.status(job_id) is JobStatus.COMPLETED


def test_an_engine_with_a_creator_and_no_url_is_refused_with_the_cure(engine: Engine) -> None:
    queue = JobQueue()

    @queue.handler("a")
    async def a() -> None: ...

    connect_parameters = parameters(engine)
    creator_engine = create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(**connect_parameters))  # type: ignore[arg-type]
    with pytest.raises(InvalidOptionError, match="creator"):
        Worker(queue, creator_engine)
    Worker(queue, creator_engine, connect_args=connect_parameters)


async def test_listeners_of_do_connect_give_a_worker_its_password(engine: Engine, jobs: Jobs) -> None:
    """Such as one that asks a cloud's service for an access token."""
    queue = JobQueue()
    application = create_engine(engine.url.set(username="nobody_at_all"))
    users: list[str] = []

    @event.listens_for(application, "do_connect")
    def renew(dialect: Any, record: Any, arguments: Any, given: dict[str, Any]) -> None:
        given["user"] = parameters(engine)["user"]
        users.append(given["user"])

    @queue.handler("a")
    async def a(session: AsyncSession) -> str:
        return str(await session.scalar(select(func.current_user())))

    (job_id,) = enqueue(engine, a.job())
    await Worker(queue, application, options=quick()).run_until_idle()
    application.dispose()
    assert jobs.get(job_id)["output"] == parameters(engine)["user"]


PROGRAM = """
import asyncio, sys
import uvloop
from sqlalchemy import create_engine
from sa_jobqueue import Worker
from isolated import jobs
uvloop.run(Worker(jobs, create_engine(sys.argv[1])).run_until_idle())
"""
MODULE = """
from sa_jobqueue import JobQueue
jobs = JobQueue()
@jobs.handler("isolated", isolation="process", max_attempts=1)
def isolated(x: int) -> int:
    print("printed to a stream that is closed")
    return x + 1
"""


@pytest.mark.slow
def test_a_worker_with_closed_standard_streams_runs_isolated_handlers(engine: Engine, jobs: Jobs, tmp_path: Path) -> None:
    (tmp_path / "isolated.py").write_text(MODULE)
    (tmp_path / "program.py").write_text(PROGRAM)
    (job_id,) = enqueue(engine, Job("isolated", 1))
    command = f"exec {sys.executable} program.py '{engine.url.render_as_string(hide_password=False)}' 0<&- 1>&- 2>&-"
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}:{Path.cwd()}"}
    process = subprocess.run(command, shell=True, cwd=tmp_path, env=environment, timeout=60, check=False)
    assert process.returncode == 0
    assert jobs.get(job_id)["output"] == 2


@pytest.mark.slow
def test_a_command_shows_what_a_terminal_does_not_have_as_a_question_mark(engine: Engine) -> None:
    enqueue(engine, job := Job("mail", {"name": "Zoë €"}, ordering_key="größe"))
    url = engine.url.render_as_string(hide_password=False)
    for command in (["jobs", "show", str(job.id)], ["jobs", "list"], ["explain", str(job.id)]):
        process = subprocess.run(
            [sys.executable, "-m", "sa_jobqueue", *command, "--url", url],
            env=os.environ | {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"},
            capture_output=True,
            timeout=60,
            check=False,
        )
        assert process.returncode == 0, process.stderr
        assert b"Traceback" not in process.stderr


def test_many_jobs_are_cancelled_in_parts(engine: Engine) -> None:
    """One array of all ids would be searched for each row, which takes time in proportion to their square."""
    sizes: list[int] = []
    ids = call(engine, enqueue_many, [Job("a", 1) for _ in range(3 * BATCH)])

    @event.listens_for(engine, "before_cursor_execute")
    def measure(connection: Any, cursor: Any, statement: str, parameters: Any, context: Any, many: bool) -> None:
        if statement.startswith("UPDATE job "):
            sizes.append(str(parameters["ids"]).count(",") + 1)

    assert len(call(engine, cancel_jobs, ids).ids) == 3 * BATCH
    assert sizes == [BATCH] * 3

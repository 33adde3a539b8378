"""`sa-jobqueue worker` as a process: it runs jobs, stops on signals, and is restarted when it dies."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner
from sqlalchemy import Engine, select

from sa_jobqueue import Backoff, Job, JobStatus
from sa_jobqueue.cli import _serving, _supervisor, main
from sa_jobqueue.cli._supervisor import Supervisor
from tests.fixtures.commands import APPLICATION, QUICK, StartWorker, workers
from tests.fixtures.jobs import Jobs
from tests.fixtures.programs import Process, Programs
from tests.fixtures.transactions import write
from tests.fixtures.workers import PATIENCE, is_running, until, wait_until


def ended(process: Process) -> int:
    """Wait for a process to end and return its exit status."""
    return process.wait(PATIENCE)


@pytest.mark.slow
def test_worker_imports_its_registry_from_the_working_directory_and_runs_jobs(
    start_worker: StartWorker, engine: Engine, jobs: Jobs
) -> None:
    job_id = jobs.add(type_name="pid", input={})
    process = start_worker("--name", "web")
    wait_until(lambda: jobs.status(job_id) is JobStatus.COMPLETED, description="the job")
    assert jobs.get(job_id)["output"] == process.pid
    assert jobs.get(job_id)["completed_by"].startswith("web:")
    process.terminate()
    assert ended(process) == 0
    assert workers(engine) == {}


@pytest.mark.slow
def test_a_worker_until_idle_ends_with_the_counts_and_with_status_1_if_a_job_died(
    start_worker: StartWorker, jobs: Jobs
) -> None:
    first, second = jobs.add(type_name="pid", input={}), jobs.add(type_name="pid", input={})
    later = jobs.add(type_name="pid", input={}, due_in=3600)
    process = start_worker("--until-idle")
    assert ended(process) == 0
    assert {jobs.status(first), jobs.status(second)} == {JobStatus.COMPLETED}
    assert jobs.status(later) is JobStatus.PENDING
    wrong = jobs.add(type_name="pid", input=7, max_attempts=1)
    process = start_worker("--until-idle")
    assert ended(process) == 1
    assert jobs.status(wrong) is JobStatus.DEAD
    refused = CliRunner().invoke(main, ["worker", "app:jobs", "--until-idle", "--processes", "2"])
    assert (refused.exit_code, "--until-idle is for one process" in refused.output) == (2, True)


LATE = """
import atexit, os, signal
from app import jobs
atexit.register(lambda: print("signalled"))
for number in (signal.SIGTERM, signal.SIGINT):
    atexit.register(os.kill, os.getpid(), number)
"""


@pytest.mark.slow
@pytest.mark.parametrize("processes", ["1", pytest.param("2", marks=pytest.mark.long)])
def test_a_signal_while_the_process_exits_does_not_change_its_status(
    engine: Engine, database_url: str, tmp_path: Path, processes: str
) -> None:
    (tmp_path / "app.py").write_text(APPLICATION)
    (tmp_path / "late.py").write_text(LATE)
    command = [sys.executable, "-m", "sa_jobqueue", "worker", "late:jobs", "--processes", processes]
    environment = os.environ | {"SA_JOBQUEUE_URL": database_url, "APPLICATION_URL": database_url}
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            wait_until(lambda: len(workers(engine)) == int(processes), description="the start")
            process.terminate()
            printed = process.communicate(timeout=PATIENCE)[0]
        finally:
            process.kill()
    assert process.returncode == 0
    assert "signalled" in printed


def test_a_second_sigterm_releases_running_jobs_without_counting_the_attempt(
    start_worker: StartWorker, engine: Engine, jobs: Jobs, tmp_path: Path
) -> None:
    running = jobs.add(type_name="waits", input={"for": str(tmp_path / "never")}, max_attempts=1)
    process = start_worker()
    wait_until(lambda: jobs.status(running) is JobStatus.RUNNING, description="the job")
    process.send_signal(signal.SIGTERM)
    wait_until(lambda: workers(engine) == {process.pid: "draining"}, description="the drain")
    process.send_signal(signal.SIGTERM)
    assert ended(process) == 0
    assert (jobs.status(running), jobs.get(running)["max_attempts"]) == (JobStatus.PENDING, 2)
    assert [attempt["outcome"] for attempt in jobs.attempts(running)] == ["released"]


def test_a_stuck_thread_does_not_keep_the_process_alive(start_worker: StartWorker, jobs: Jobs) -> None:
    running = jobs.add(type_name="stuck", input={})
    process = start_worker("--shutdown-timeout", "0", "--cancel-timeout", "0.1s")
    wait_until(lambda: jobs.status(running) is JobStatus.RUNNING, description="the job")
    process.terminate()
    assert ended(process) == 0
    assert jobs.status(running) is JobStatus.PENDING


def test_a_worker_that_fails_to_start_does_not_exit_its_calling_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not even where another thread would keep that process from exiting."""
    exit_event = threading.Event()
    monkeypatch.setattr(_serving, "EXIT_PATIENCE", timedelta(0))
    monkeypatch.setattr(_serving, "_leave", lambda status: exit_event.set())
    release = threading.Event()
    thread = threading.Thread(target=release.wait)
    thread.start()
    try:
        url = "postgresql://127.0.0.1:1/x?connect_timeout=2"
        result = CliRunner().invoke(main, ["worker", "sa_jobqueue.cli.demo.app:jobs", "--url", url])
        assert result.exit_code == 1
        assert not exit_event.wait(0.2)
    finally:
        release.set()
        thread.join()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine_path", "owner"),
    [
        ("engine", None),
        pytest.param("async_engine", None, marks=pytest.mark.long),
        ("sessions", "the application's"),
        pytest.param("async_sessions", None, marks=pytest.mark.long),
    ],
)
def test_worker_uses_the_applications_engine_or_session_factory(
    start_worker: StartWorker, jobs: Jobs, engine_path: str, owner: str | None
) -> None:
    job_id = jobs.add(type_name="whose", input={})
    process = start_worker("--engine", f"app:{engine_path}", SA_JOBQUEUE_URL="postgresql://127.0.0.1:1/not_this_one")
    wait_until(lambda: jobs.status(job_id) is JobStatus.COMPLETED, description="the job")
    assert jobs.get(job_id)["output"] == owner
    process.terminate()
    assert ended(process) == 0


def test_an_unreachable_database_is_reported_without_passwords(start_worker: StartWorker, tmp_path: Path) -> None:
    url = "postgresql+psycopg://ann:s3cret@127.0.0.1:1/x?sslpassword=s3cret&connect_timeout=2"
    assert ended(start_worker("--engine", "app:engine", APPLICATION_URL=url)) == 1
    (line,) = (tmp_path / "0.log").read_text().splitlines()
    assert line.startswith("Error: cannot use postgresql+psycopg://ann:***@127.0.0.1:1/x")
    assert "s3cret" not in line


@pytest.mark.parametrize(
    ("arguments", "registry"),
    [
        (["--queues", "a=b"], "app:jobs"),
        (["--concurrency", "0"], "app:jobs"),
        (["--heartbeat-timeout", "0.3s"], "app:jobs"),
        (["--engine", "app:jobs"], "app:jobs"),
        (["--engine", "app:unbound"], "app:jobs"),
        ([], "app:nothing"),
        (["--processes", "2"], "app:nothing"),
    ],
)
def test_invalid_worker_arguments_exit_with_status_2(
    database_url: str, programs: Programs, tmp_path: Path, arguments: list[str], registry: str
) -> None:
    (tmp_path / "app.py").write_text(APPLICATION)
    words = ["worker", registry, *QUICK, *arguments]
    (tmp_path / "command.py").write_text(f"from sa_jobqueue.cli import main\nmain({words!r}, prog_name='sa-jobqueue')")
    env = {"SA_JOBQUEUE_URL": database_url, "APPLICATION_URL": database_url}
    command = programs.run(Path("command.py"), cwd=tmp_path, env=env, into=tmp_path, timeout_seconds=60)
    assert command.code == 2, command.stderr
    assert command.stderr.startswith(("Usage: ", "Error: ")), command.stderr


@pytest.mark.long
def test_child_processes_are_not_started_on_an_unusable_database(
    start_worker: StartWorker, engine: Engine, tmp_path: Path
) -> None:
    write(engine, "COMMENT ON TABLE job IS 'sa_jobqueue version=0'")
    cases = {
        "is of version 0": {},
        "cannot use postgresql+psycopg://ann:***@127.0.0.1:1/x": {
            "SA_JOBQUEUE_URL": "postgresql://ann:s3cret@127.0.0.1:1/x?connect_timeout=2"
        },
    }
    for number, (words, environment) in enumerate(cases.items()):
        assert ended(start_worker("--processes", "3", **environment)) == 1
        (line,) = (tmp_path / f"{number}.log").read_text().splitlines()
        assert line.startswith("Error: ")
        assert words in line


@pytest.mark.long
def test_two_processes_run_and_a_killed_one_is_started_again(
    start_worker: StartWorker, engine: Engine, jobs: Jobs, tmp_path: Path
) -> None:
    parent = start_worker("--processes", "2", "--name", "web")
    wait_until(lambda: len(workers(engine)) == 2, description="two workers")
    first = set(workers(engine))
    assert parent.pid not in first
    victim = first.pop()
    os.kill(victim, signal.SIGKILL)
    wait_until(lambda: len(set(workers(engine)) - {victim}) == 2, description="another worker")
    job_id = jobs.add(type_name="pid", input={})
    wait_until(lambda: jobs.status(job_id) is JobStatus.COMPLETED, description="a job after it")
    living = set(workers(engine)) - {victim}
    assert jobs.get(job_id)["output"] in living
    running = jobs.add(type_name="waits", input={"for": str(tmp_path / "go")})
    wait_until(lambda: jobs.status(running) is JobStatus.RUNNING, description="the job")
    parent.terminate()
    wait_until(lambda: "draining" in workers(engine).values(), description="the drain")
    (tmp_path / "go").touch()
    assert ended(parent) == 0
    assert jobs.status(running) is JobStatus.COMPLETED
    assert not [pid for pid in living if is_running(pid)]


@pytest.mark.long
def test_a_parent_rescues_jobs_of_its_dead_child_process_at_once(
    start_worker: StartWorker, engine: Engine, jobs: Jobs, tmp_path: Path
) -> None:
    parent = start_worker("--processes", "2", "--heartbeat-timeout", "600s", "--heartbeat-interval", "5s")
    wait_until(lambda: len(workers(engine)) == 2, description="two workers")
    running = jobs.add(type_name="waits", input={"for": str(tmp_path / "go")})
    wait_until(lambda: jobs.status(running) is JobStatus.RUNNING, description="the job")
    holder = select(Job.Worker.pid).where(Job.Worker.id == jobs.get(running)["leased_by"])
    with engine.connect() as connection:
        os.kill(connection.execute(holder).scalar_one(), signal.SIGKILL)
    # Other workers would notice only after ten minutes.
    wait_until(lambda: jobs.get(running)["attempt"] == 2, description="its next attempt")
    assert [attempt["outcome"] for attempt in jobs.attempts(running)] == ["lost"]
    (tmp_path / "go").touch()
    wait_until(lambda: jobs.status(running) is JobStatus.COMPLETED, description="its end")
    parent.terminate()
    assert ended(parent) == 0


@pytest.mark.long
def test_a_signal_to_the_whole_process_group_drains_only_once(
    start_worker: StartWorker, engine: Engine, jobs: Jobs, tmp_path: Path
) -> None:
    """A terminal's Ctrl-C and a service manager's stop reach the children as well as the parent."""
    parent = start_worker("--processes", "2")
    running = jobs.add(type_name="waits", input={"for": str(tmp_path / "go")})
    wait_until(lambda: len(workers(engine)) == 2, description="two workers")
    wait_until(lambda: jobs.status(running) is JobStatus.RUNNING, description="the job")
    for pid in (parent.pid, *workers(engine)):
        os.kill(pid, signal.SIGTERM)
    wait_until(lambda: "draining" in workers(engine).values(), description="the drain")
    (tmp_path / "go").touch()
    assert ended(parent) == 0
    assert jobs.status(running) is JobStatus.COMPLETED


@pytest.mark.long
def test_children_of_a_killed_parent_drain_and_end(start_worker: StartWorker, engine: Engine) -> None:
    parent = start_worker("--processes", "2")
    wait_until(lambda: len(workers(engine)) == 2, description="two workers")
    children = list(workers(engine))
    parent.kill()
    wait_until(lambda: not any(map(is_running, children)), description="the children's end")
    assert workers(engine) == {}  # they have deleted their rows


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="no /proc to read arguments from")
def test_the_database_password_appears_in_no_process_arguments(
    start_worker: StartWorker, engine: Engine, database_url: str
) -> None:
    with_password = database_url.replace("://postgres@", "://postgres:s3cret@")
    assert "s3cret" in with_password
    parent = start_worker("--processes", "2", SA_JOBQUEUE_URL=with_password)
    wait_until(lambda: len(workers(engine)) == 2, description="two workers")
    for pid in (parent.pid, *workers(engine)):
        assert b"s3cret" not in Path(f"/proc/{pid}/cmdline").read_bytes()
    parent.terminate()
    assert ended(parent) == 0


async def test_the_parent_gives_up_on_processes_that_keep_failing_at_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_supervisor, "RESTART", Backoff(base=timedelta(milliseconds=1), jitter=False))
    failing = [sys.executable, "-c", "raise SystemExit(3)"]
    # The other one ends when it is asked to stop: at the end of its pipe, or when it reads a word from it.
    waiting = [sys.executable, "-c", "import os, sys; os.read(int(sys.argv[-1]), 1)"]
    assert await asyncio.wait_for(Supervisor([failing, waiting], os.environ).run(), PATIENCE) == 1


async def test_the_parent_does_not_wait_for_the_start_of_a_process_when_it_is_stopped(tmp_path: Path) -> None:
    program = f"open({str(tmp_path / 'importing')!r}, 'w').close(); import threading; threading.Event().wait()"
    supervisor = Supervisor([[sys.executable, "-c", program]], dict(os.environ))
    running = asyncio.create_task(supervisor.run())
    await until((tmp_path / "importing").exists, description="a process that imports the application")
    supervisor.stop()
    assert await asyncio.wait_for(running, PATIENCE) == 0


@pytest.mark.long
def test_a_second_signal_to_the_parent_releases_running_jobs(
    start_worker: StartWorker, engine: Engine, jobs: Jobs, tmp_path: Path
) -> None:
    parent = start_worker("--processes", "2")
    running = jobs.add(type_name="waits", input={"for": str(tmp_path / "never")})
    wait_until(lambda: jobs.status(running) is JobStatus.RUNNING, description="the job")
    parent.send_signal(signal.SIGINT)
    wait_until(lambda: "draining" in workers(engine).values(), description="the drain")
    parent.send_signal(signal.SIGTERM)
    assert ended(parent) == 0
    assert jobs.status(running) is JobStatus.PENDING

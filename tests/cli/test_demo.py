"""`sa-jobqueue demo`: the main job on real input, checked; and nothing is left behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from sqlalchemy import Engine, NullPool, create_engine, text

from sa_jobqueue.cli import main
from sa_jobqueue.cli._output import rewrite_line
from sa_jobqueue.cli.demo import app, command
from sa_jobqueue.cli.demo.command import compare, count_plainly, find
from sa_jobqueue.errors.extras import install_command
from tests.fixtures.programs import Process, Programs
from tests.fixtures.workers import PATIENCE, is_running, wait_until

FILES = 150
FINE = {"lines": 1}


def demo(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a reduced demo to its end."""
    return subprocess.run(
        [sys.executable, "-m", "sa_jobqueue", "demo", "--files", str(FILES), *arguments],
        env={name: value for name, value in os.environ.items() if name != "SA_JOBQUEUE_URL"} | environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


def assert_is_right(report: dict[str, Any]) -> None:
    """Check a report against what can be known without the demo."""
    paths = find(app.LIBRARY, FILES)
    broken = [path for path, counts in count_plainly(paths).items() if counts is None]
    assert report["ok"], report["complaints"]
    assert report["files"] == len(paths) == FILES
    assert report["dead_letters"] == len(broken) == sum(report["dead_by_error"].values())
    assert report["completed"] == FILES - len(broken)
    # Three attempts each; one that was rescued from the killed worker counts as one of them.
    assert 2 * len(broken) - report["rescued"] <= report["retries"] <= 2 * len(broken)
    assert report["rescued"] >= 1
    assert len(report["killed_pids"]) == 1
    assert not [pid for pid in report["pids"] if is_running(pid)]


@pytest.mark.long
def test_demo_prints_its_progress_and_leaves_the_database_of_the_environment_alone(
    database_url: str, engine: Engine
) -> None:
    result = demo(SA_JOBQUEUE_URL=database_url)
    assert result.returncode == 0, result.stderr
    assert "All counts are equal to those without the queue." in result.stdout
    assert re.search(r"^Worker \d+ was killed, and its \d+ jobs were rescued\.$", result.stdout, re.MULTILINE)
    assert "demo: enqueueing" in result.stdout  # progress, in lines
    with engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM job")).scalar_one() == 0


@pytest.mark.long
def test_demo_checks_its_result_and_leaves_no_process() -> None:
    result = demo("--json")
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert_is_right(report)
    assert len(report["pids"]) >= 4  # the workers and their parent, and the server


def test_demo_reports_a_missing_dashboard_before_starting_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.setattr(command, "open_server", lambda *_: pytest.fail("a server was started"))
    result = CliRunner().invoke(main, ["demo", "--dashboard"], env={"SA_JOBQUEUE_URL": None})
    assert result.exit_code == 1
    assert f"the dashboard is not installed: {install_command('dashboard')}" in result.stderr


def test_progress_is_one_line_on_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    rewrite_line("demo: running jobs, 1 of 9")
    rewrite_line("demo: done")
    assert capsys.readouterr().out == "\r\x1b[2Kdemo: running jobs,\r\x1b[2Kdemo: done"


@pytest.fixture
def running_demo(programs: Programs, tmp_path: Path) -> Iterator[Process]:
    process = programs.start("-m", "sa_jobqueue", "demo", cwd=tmp_path, env={})
    yield process
    if process.poll() is None:
        process.kill()  # its workers end with it
    process.communicate(timeout=PATIENCE)


@pytest.mark.long
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda how: how.name)
def test_an_interrupted_demo_leaves_no_process(running_demo: Process, how: signal.Signals) -> None:
    assert running_demo.stdout is not None
    url = next(line for line in running_demo.stdout if " started at " in line).split()[-1]
    next(line for line in running_demo.stdout if "running jobs" in line)
    pids: list[int] = []
    engine = create_engine(url, poolclass=NullPool)

    def has_two_workers() -> bool:
        with engine.connect() as connection:
            pids[:] = connection.execute(text("SELECT pid FROM sa_jobqueue_demo.worker")).scalars()
        return len(pids) == 2

    wait_until(has_two_workers, description="the workers")
    running_demo.send_signal(how)
    assert running_demo.wait(PATIENCE) != 0
    wait_until(lambda: not any(map(is_running, pids)), description="the workers' end")


@pytest.mark.parametrize(
    ("path", "ends"),
    [
        ("fine", []),
        ("fine", [FINE, FINE]),
        ("fine", [FINE, None]),
        ("fine", [None]),
        ("fine", [{"lines": 2}]),
        ("broken", [FINE]),
        ("unknown", [FINE]),
    ],
)
def test_the_demo_check_reports_each_discrepancy(path: str, ends: list[Any]) -> None:
    plain = {"fine": FINE, "broken": None}
    sound: dict[str, list[Any]] = {"fine": [FINE], "broken": [None]}
    assert compare(plain, sound) == []
    (complaint,) = compare(plain, sound | {path: ends})
    assert complaint.startswith(f"{path}: expected ")


def test_demo_files_exclude_installed_packages(tmp_path: Path) -> None:
    for path in ("a.py", "data/b.py", "site-packages/c.py", "d.txt"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).touch()
    assert find(tmp_path) == ["data/b.py", "a.py"]  # test data first

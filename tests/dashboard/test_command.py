"""`sa-jobqueue dashboard`: one command, a link that works once, and refusals with advice."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner

from sa_jobqueue.cli import main
from sa_jobqueue.testing.databases import database_name
from sa_jobqueue.testing.plugin import MakeDatabase
from sa_jobqueue.testing.servers import PostgresServer
from tests.fixtures.jobs import Jobs
from tests.fixtures.programs import Process, Programs
from tests.fixtures.workers import wait_until

Start = Callable[..., tuple[Process, str]]
APP = """
from sa_jobqueue.dashboard import Access
def authorize(request):
    return Access(user="bob") if request.headers.get("x-user") == "bob" else None
"""


@pytest.fixture
def start(database_url: str, programs: Programs, tmp_path: Path) -> Start:
    """Give a function that starts a command and returns its process and the URL that it prints."""
    return partial(_start, programs, database_url, tmp_path)


def _start(programs: Programs, database_url: str, tmp_path: Path, *arguments: str) -> tuple[Process, str]:
    env = {"SA_JOBQUEUE_URL": database_url, "PYTHONPATH": str(Path(__file__).parents[2])}
    process = programs.start("-m", "sa_jobqueue", *arguments, cwd=tmp_path, env=env)
    assert process.stdout is not None
    for line in process.stdout:
        if match := re.search(r"serving the dashboard on (\S+)", line):
            return process, match[1]
    raise AssertionError(f"it ended with status {process.wait(30)}")


def stop(process: Process, number: signal.Signals = signal.SIGTERM) -> int:
    process.send_signal(number)
    status = process.wait(30)
    assert process.stdout is not None
    process.stdout.close()
    return status


@pytest.mark.slow
def test_the_dashboard_command_prints_a_one_time_link(start: Start, jobs: Jobs) -> None:
    job_id = str(jobs.add())
    process, link = start("dashboard", "--port", "0", "--read-only")
    try:
        url = link.partition("?")[0]
        assert httpx.get(url).status_code == 401
        assert "server" not in httpx.get(url).headers
        with httpx.Client(follow_redirects=True) as browser:
            page = browser.get(link)
            assert page.status_code == 200
            assert "token" not in str(page.url)
            assert job_id in browser.get(f"{url}queue/jobs").text
            assert "read-only" in page.text
        assert httpx.get(link).status_code == 401
    finally:
        assert stop(process) == 0


@pytest.mark.slow
def test_the_dashboard_command_serves_several_databases_beside_one_that_is_down(
    start: Start, database_url: str, make_database: MakeDatabase, jobqueue_server: PostgresServer
) -> None:
    other_url = make_database(jobqueue_server)
    down = "postgresql://127.0.0.1:1/down"
    process, link = start(
        "dashboard", "--port", "0", "--read-only", *(f"--url={url}" for url in (database_url, other_url, down))
    )
    try:
        url = link.partition("?")[0]
        with httpx.Client(follow_redirects=True) as browser:
            page = browser.get(link).text
            for name in map(database_name, (database_url, other_url, down)):
                assert f"/{name}/" in page
            for name in map(database_name, (database_url, other_url)):
                assert browser.get(f"{url}{name}/jobs").status_code == 200
    finally:
        assert stop(process) == 0


def test_the_dashboard_command_accepts_an_authorize_function_and_a_root_path(
    start: Start, tmp_path: Path, jobs: Jobs
) -> None:
    jobs.add()
    (tmp_path / "admin.py").write_text(APP)
    options = ("--authorize", "admin:authorize", "--root-path", "/jobs", "--host", "shop.example")
    process, link = start("dashboard", "--port", "0", *options)
    try:
        assert "token" not in link
        url = link.removesuffix("/jobs/")
        bob = {"X-User": "bob", "Host": "shop.example"}
        assert httpx.get(f"{url}/queue/jobs").status_code == 401
        page = httpx.get(f"{url}/queue/jobs", headers=bob)
        assert page.status_code == 200
        assert 'href="/jobs/queue/overview"' in page.text
    finally:
        assert stop(process, signal.SIGINT) == 0


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "192.0.2.1", "example.com"])
def test_the_dashboard_command_refuses_public_addresses_without_authorize(address: str) -> None:
    result = CliRunner().invoke(main, ["dashboard", "--url", "postgresql://127.0.0.1:1/none", "--address", address])
    assert result.exit_code == 2
    assert "--authorize" in result.output


def test_a_database_that_does_not_answer_is_an_error() -> None:
    result = CliRunner().invoke(main, ["dashboard", "--url", "postgresql://127.0.0.1:1/none"])
    assert result.exit_code == 1
    assert "Traceback" not in result.output


@pytest.mark.long
def test_the_demo_serves_the_dashboard_during_and_after_its_run(start: Start) -> None:
    process, link = start("demo", "--files", "50", "--dashboard")
    try:
        with httpx.Client(follow_redirects=True) as browser:
            address = link.partition("?")[0]
            assert browser.get(link).status_code == 200
            # The first report is measured in a thread: no page waits for it.
            wait_until(lambda: "Findings" in browser.get(address).text, description="the first report")
            assert process.stdout is not None
            for line in process.stdout:
                if "still served" in line:
                    break
            assert "count_file" in browser.get(f"{address}queue/jobs").text
    finally:
        assert stop(process, signal.SIGINT) == 0


@pytest.mark.slow
@pytest.mark.parametrize("command", [("dashboard", "--port", "0"), ("exporter", "--port", "0"), ("postgres",)])
def test_a_serving_command_prints_its_url_as_one_line_of_json(
    programs: Programs, database_url: str, tmp_path: Path, command: tuple[str, ...]
) -> None:
    env = {"SA_JOBQUEUE_URL": database_url, "PYTHONPATH": str(Path(__file__).parents[2])}
    process = programs.start("-m", "sa_jobqueue", *command, "--json", cwd=tmp_path, env=env)
    assert process.stdout is not None
    try:
        scheme, colon, _ = json.loads(next(iter(process.stdout)))["url"].partition("://")
        assert (scheme, colon) == ("postgresql+psycopg" if command == ("postgres",) else "http", "://")
    finally:
        assert stop(process) == 0

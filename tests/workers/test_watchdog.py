"""A stuck worker reports it and exits; one that cannot reach its database reports that, and waits."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from http import HTTPStatus
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import make_url

from sa_jobqueue import JobStatus, WorkerOptions
from sa_jobqueue.cli import _watchdog
from sa_jobqueue.cli._serving import serve_probes
from sa_jobqueue.cli._watchdog import STUCK, Watchdog
from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.observe.probes import answer
from sa_jobqueue.worker.background.vitals import PartVitals, Phase, Vitals, VitalSigns
from tests.chaos.proxy import Proxy
from tests.fixtures.jobs import Jobs
from tests.fixtures.ports import free_port
from tests.fixtures.programs import Process
from tests.fixtures.workers import PATIENCE, Spawn, wait_until

WORKER = """
import os, sys, time
from sa_jobqueue import JobQueue
from sa_jobqueue.cli import main

jobs = JobQueue()

@jobs.handler("blocks")
async def blocks_the_loop(payload: dict) -> None:
    time.sleep(60)

beats = "--heartbeat-interval 0.2s --heartbeat-timeout 10s"
quick = f"--poll-interval 0.1s {beats} --cancel-timeout 0.1s".split()
main(["worker", "__main__:jobs", *quick, *sys.argv[1:], *os.environ["ARGUMENTS"].split()])
"""


def ask(port: int, path: str) -> tuple[int, dict[str, Any]]:
    """Ask a probe; 0 where nothing listens yet."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=PATIENCE) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)
    except OSError:
        return 0, {}


class Manager:
    """A service manager that records the messages of a process."""

    def __init__(self, path: Path) -> None:
        self.received: list[str] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self.environment = {"NOTIFY_SOCKET": str(path), "WATCHDOG_USEC": "1000000"}
        self._thread = threading.Thread(target=self._receive, name="manager", daemon=True)
        self._thread.start()

    def _receive(self) -> None:
        while message := self._socket.recv(100):
            self.received.append(message.decode())

    def close(self) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as last:
            last.sendto(b"", self.environment["NOTIFY_SOCKET"])
        self._thread.join(PATIENCE)
        self._socket.close()


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    """Give a service manager."""
    new_manager = Manager(tmp_path / "notify")
    yield new_manager
    new_manager.close()


@contextmanager
def proxied(url: str) -> Iterator[tuple[Proxy, str]]:
    """Give a proxy before a database, and its URL."""
    with psycopg.connect(make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)) as connection:
        row = connection.execute("SELECT current_setting('unix_socket_directories'), current_setting('port')").fetchone()
    assert row is not None
    proxy = Proxy(Path(row[0].split(",")[0].strip()) / f".s.PGSQL.{row[1]}")
    away = make_url(url).set(host="127.0.0.1", port=proxy.port).difference_update_query(["host", "port"])
    yield proxy, away.render_as_string(hide_password=False)
    proxy.close()


def output(process: Process) -> str:
    printed, _ = process.communicate(timeout=PATIENCE)
    return printed


@pytest.mark.slow
def test_a_blocked_loop_fails_livez_and_the_watchdog_exits_with_the_blocking_stack(
    spawn: Spawn, jobs: Jobs, manager: Manager
) -> None:
    port = free_port()
    process = spawn(WORKER, ARGUMENTS=f"--health-port {port} --watchdog 3s", **manager.environment)
    wait_until(lambda: ask(port, "/readyz")[0] == HTTPStatus.OK, description="readiness")
    assert ask(port, "/livez")[1]["status"] == "ok"
    wait_until(lambda: {"READY=1", "WATCHDOG=1"} <= set(manager.received), description="word to the manager")
    job = jobs.add(type_name="blocks", input={})
    wait_until(lambda: ask(port, "/livez")[0] == HTTPStatus.SERVICE_UNAVAILABLE, description="red")
    (cause,) = ask(port, "/livez")[1]["causes"]
    assert cause.startswith("the event loop has been stuck for ")
    words = output(process)
    assert process.returncode == STUCK
    assert "stuck: the event loop for" in words
    assert "in blocks_the_loop" in words
    assert jobs.status(job) in {JobStatus.RUNNING, JobStatus.PENDING}


@pytest.mark.long
def test_an_unreachable_database_fails_only_readyz_until_it_is_back(
    spawn: Spawn, database_url: str, manager: Manager
) -> None:
    port = free_port()
    with proxied(database_url) as (proxy, url):
        arguments = f"--health-port {port} --watchdog 0.5s --heartbeat-timeout 1s"
        process = spawn(WORKER, ARGUMENTS=arguments, SA_JOBQUEUE_URL=url, **manager.environment)
        wait_until(lambda: ask(port, "/readyz")[0] == HTTPStatus.OK, description="readiness")
        proxy.stall()

        def lost_for(seconds: float) -> bool:
            status, body = ask(port, "/readyz")
            causes = [cause for cause in body["causes"] if cause.startswith("the database has not answered for ")]
            assert (status == HTTPStatus.OK) is not bool(body["causes"]), body
            return bool(causes) and float(causes[0].split()[-2]) > seconds

        # Longer than any part would be silent that did not go on trying.
        wait_until(lambda: lost_for(3.5), description="red")
        assert ask(port, "/livez")[0] == HTTPStatus.OK
        proxy.cut()
        proxy.resume()
        wait_until(lambda: ask(port, "/readyz")[0] == HTTPStatus.OK, description="readiness again")
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert "stuck" not in output(process)
    assert process.returncode == 0
    assert manager.received.count("READY=1") == 1
    assert "STOPPING=1" in manager.received


@pytest.mark.long
def test_the_parent_notifies_systemd_and_each_process_serves_its_own_health_port(
    spawn: Spawn, manager: Manager, tmp_path: Path
) -> None:
    port = free_port()
    (tmp_path / "watched.py").write_text(WORKER.partition("quick =")[0])
    path = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2])])
    arguments = f"--processes 2 --health-port {port}"
    script = WORKER.replace("__main__:jobs", "watched:jobs").replace("*quick, ", "")
    process = spawn(script, ARGUMENTS=arguments, PYTHONPATH=path, **manager.environment)
    wait_until(lambda: "READY=1" in manager.received, description="word of the parent")
    for number in range(2):
        wait_until(lambda n=number: ask(port + n, "/readyz")[0] == HTTPStatus.OK, description="a ready process")  # type: ignore[misc]
    wait_until(lambda: manager.received.count("WATCHDOG=1") >= 2, description="its signs of life")
    process.send_signal(signal.SIGTERM)
    output(process)
    assert process.returncode == 0
    assert manager.received.count("READY=1") == manager.received.count("STOPPING=1") == 1


def vitals(silent: float, **more: Any) -> Vitals:
    part = PartVitals(name="listener", silent=timedelta(seconds=silent), usual=timedelta(seconds=20))
    defaults: dict[str, Any] = {
        "phase": Phase.RUNNING,
        "database_silent": timedelta(0),
        "database_error": None,
        "is_leased": True,
        "is_listening": True,
    }
    return Vitals(parts=(part,), **defaults | more)


def test_the_watchdog_warns_at_half_its_limit_exits_at_it_and_ignores_a_system_sleep(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now, silent = [1000.0], [0.0]
    ends: list[int] = []
    alive: list[float] = []
    dog = Watchdog(
        lambda: vitals(silent[0]),
        limit=timedelta(seconds=10),
        end=ends.append,
        on_healthy=lambda: alive.append(now[0]),
        clock=lambda: now[0],
    )

    def check(at: float, silent_for: float) -> None:
        now[0], silent[0] = at, silent_for
        dog.check()

    with caplog.at_level(logging.ERROR):
        check(1000.5, 24.9)
        assert (len(alive), caplog.messages) == (1, [])
        check(1001.0, 25.5)
        check(1001.5, 26.0)
        assert len(alive) == 1
        assert caplog.messages == ["stuck: the listener for 26 s; the stacks of all threads follow"]
        assert ends == []
        check(1002.0, 30.5)
        assert ends == [STUCK]
        check(1500.0, 500.0)  # all was stopped, this thread too
        check(1500.5, 500.5)
        assert ends == [STUCK]
        for step in range(12):
            check(1501.0 + step / 2, 501.0 + step / 2)
        assert len(ends) > 1


def test_health_probes_name_the_cause_of_a_failure() -> None:
    limit = timedelta(seconds=10)
    assert answer("/livez?verbose", vitals(24), limit)[0] is HTTPStatus.OK
    status, body = answer("/livez", vitals(26), limit)
    assert (status, body["causes"]) == (HTTPStatus.SERVICE_UNAVAILABLE, ["the listener has been stuck for 26.0 s"])
    unreachable = vitals(0, is_leased=False, database_silent=timedelta(seconds=12))
    assert answer("/livez", unreachable, limit)[0] is HTTPStatus.OK
    assert answer("/readyz", unreachable, limit)[1]["causes"] == ["the database has not answered for 12.0 s"]
    full = replace(unreachable, database_error="DiskFull: could not extend file")
    causes = ["heartbeats have failed for 12.0 s: DiskFull: could not extend file"]
    assert answer("/readyz", full, limit)[1]["causes"] == causes
    assert answer("/readyz", vitals(0, phase=Phase.DRAINING), limit)[1]["causes"] == ["the worker is draining"]
    assert answer("/readyz", vitals(0, is_listening=False), limit)[1]["listening"] is False  # it polls
    assert answer("/", vitals(0), limit)[0] is HTTPStatus.NOT_FOUND
    starting = VitalSigns(WorkerOptions()).read()
    assert answer("/livez", starting, limit)[0] is HTTPStatus.OK
    assert answer("/readyz", starting, limit)[1]["causes"] == ["the worker is starting"]
    with socket.socket() as occupied:
        occupied.bind(("127.0.0.1", 0))
        occupied.listen()
        port = occupied.getsockname()[1]
        with (
            pytest.raises(InvalidOptionError, match="health port: cannot listen on"),
            serve_probes(lambda: starting, limit=limit, port=port, address="127.0.0.1"),
        ):
            pass


def test_systemd_watchdog_settings_are_read_and_notify_ignores_a_bad_socket(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limit = _watchdog.watchdog_limit
    assert limit({"WATCHDOG_USEC": "30000000"}) == timedelta(seconds=30)
    assert limit({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}) == timedelta(seconds=30)
    assert limit({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}) is None
    assert [limit({"WATCHDOG_USEC": microseconds}) for microseconds in ("", "0", "-1", "soon")] == [None] * 4
    for address in ("", "vsock:2:1234", "/nowhere/at/all"):
        monkeypatch.setenv("NOTIFY_SOCKET", address)
        _watchdog.notify("READY=1")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        name = f"sa_jobqueue-{os.getpid()}-{time.monotonic_ns()}"
        manager.bind(f"\0{name}")
        monkeypatch.setenv("NOTIFY_SOCKET", f"@{name}")
        _watchdog.notify("READY=1")
        assert manager.recv(100) == b"READY=1"

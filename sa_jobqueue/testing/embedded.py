"""A PostgreSQL server of our own, run from a directory of programs as a direct child of this process."""

import atexit
import os
import secrets
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Self

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo
from sqlalchemy import URL

from sa_jobqueue.errors import JobQueueError
from sa_jobqueue.testing.binaries import read_version
from sa_jobqueue.testing.owners import Account, OwnedProcess, server_account, server_environment
from sa_jobqueue.testing.private_dirs import PrivateDir, programs_for

SUPERUSER = "postgres"
_SOCKET_PORT = 5432
_LOOPBACK = "127.0.0.1"
_POLL_SECONDS = 0.005
_LOG_TAIL = 2_000
_ADDRESS = "sa_jobqueue.address"  # in a data directory that is kept


class ServerStartError(JobQueueError):
    """The PostgreSQL server did not start; its files were removed.

    `log` is the end of the output of the server and `initdb`.
    """

    def __init__(self, reason: str, log: str = "") -> None:
        self.reason = reason
        self.log = log
        super().__init__(f"{reason}\n{log}".rstrip())


class EmbeddedServer:
    """Run one PostgreSQL server that ends when its owner, this process, ends.

    It listens on a socket in a directory of mode 0700, and with `tcp` also on a free port of 127.0.0.1 with a generated
    password; a given `data_dir` keeps both, so that the URL is the same at the next start, unless the port is taken then.
    Started by root, it runs as `nobody`. The server ends with this process, even after kill -9, in which case the temporary
    directory is not removed.

    `crash()` loses the state of the server, as a power failure would, but not on the disk; committed rows are recovered.
    Obliges: with `outlive_owner`, only `stop()` or SIGINT to `pid` stops the server, and its directory is not removed.
    Raises: `ServerStartError` when it cannot be started.
    """

    def __init__(
        self,
        bin_dir: Path,
        settings: Mapping[str, str] | None = None,
        data_dir: Path | None = None,
        *,
        tcp: bool = False,
        outlive_owner: bool = False,
        start_timeout: timedelta = timedelta(seconds=60),
        stop_timeout: timedelta = timedelta(seconds=10),
    ) -> None:
        self.bin_dir = bin_dir.absolute()  # the server runs in another directory than we do
        self._settings = dict(settings or {})
        self._given_data_dir = data_dir.absolute() if data_dir is not None else None
        self._tcp = tcp
        self._outlive_owner = outlive_owner
        self._start_timeout = start_timeout.total_seconds()
        self._stop_timeout = stop_timeout.total_seconds()
        self._account: Account | None = None
        self._password = secrets.token_urlsafe(16)
        self._port = _SOCKET_PORT
        self._owner: int | None = None
        self._version: tuple[int, ...] | None = None
        self._private: PrivateDir | None = None
        self._process: OwnedProcess | None = None

    def start(self) -> Self:
        """Make a database cluster unless the data directory has one, and return once the server takes connections."""
        if self.is_running:
            return self
        try:
            if self._private is None:
                self._prepare()
            if not (self.data_dir / "PG_VERSION").exists():
                self._place.own(self.data_dir)
                self._init_database()
            self._launch()
        except (OSError, subprocess.SubprocessError, psycopg.Error) as error:
            log = self._log_tail()
            self.stop()
            raise ServerStartError(f"{self.bin_dir / 'postgres'}: {error}", log) from error
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Shut the server down, ending its sessions, and remove its temporary directory; a second call does nothing."""
        if os.getpid() != self._owner:  # a fork inherits the object and its exit hook, not the server
            return
        self._shut_down()
        atexit.unregister(self.stop)
        if self._private is not None:
            self._private.remove()
            self._private = None

    def restart(self) -> None:
        """Shut the server down and start it again on the same data, at the same URL."""
        self._shut_down()
        self.start()

    def crash(self) -> None:
        """Kill the server with SIGKILL and return when all its processes are gone. `start()` then recovers the data."""
        if self._process is not None:
            self._end(signal.SIGKILL)

    @property
    def is_running(self) -> bool:
        """Whether its process is there."""
        if self._process is not None and self._process.status is not None:
            self._release()
        return self._process is not None

    @property
    def pid(self) -> int:
        """The process that `kill -INT` stops. Raises: `ServerStartError` when the server is not running."""
        if self._process is None:
            raise ServerStartError("the server is not running")
        return self._process.pid

    @property
    def version(self) -> tuple[int, ...]:
        """The server's release, such as (18, 6)."""
        if self._version is None:
            self._version = read_version(self.bin_dir)
        if self._version is None:
            raise ServerStartError(f"{self.bin_dir / 'postgres'} does not run")
        return self._version

    @property
    def socket_dir(self) -> Path:
        """Directory of its socket."""
        return self._place.path

    @property
    def log_path(self) -> Path:
        """Log of the server."""
        return self._place.path / "server.log"

    @property
    def data_dir(self) -> Path:
        """Data directory."""
        return self._given_data_dir or self._place.path / "data"

    @property
    def socket_url(self) -> str:
        """The URL through the private socket, which asks for no password."""
        query = {"host": str(self.socket_dir), "port": str(self._port)}
        return _render(URL.create("postgresql+psycopg", SUPERUSER, database="postgres", query=query))

    @property
    def url(self) -> str:
        """The URL to connect with: over TCP when the server listens there, else through the private socket."""
        if not self._tcp:
            return self.socket_url
        return _render(
            URL.create("postgresql+psycopg", SUPERUSER, self._password, _LOOPBACK, self._port, database="postgres")
        )

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self._outlive_owner:
            self.stop()

    @property
    def _place(self) -> PrivateDir:
        if self._private is None:
            raise ServerStartError("the server was not started")
        return self._private

    def _prepare(self) -> None:
        self._owner = os.getpid()
        self._account = server_account(self._given_data_dir)
        self._private = PrivateDir(self._account)
        if not self._outlive_owner:
            atexit.register(self.stop)
        if self._tcp:
            self._port = _free_port()
            self._restore_address()
        self._programs = programs_for(self.bin_dir, self._account, self._private)
        # Not initdb's own rules: the socket's directory is what protects the socket, and TCP is open to every local user.
        rules = f"local all all trust\nhost all all {_LOOPBACK}/32 scram-sha-256\n"
        self._private.write("hba.conf", rules)

    def _init_database(self) -> None:
        options = ["--auth=trust", "--no-sync", "--locale=C", "--encoding=UTF8", f"--username={SUPERUSER}"]
        with self._place.append(self.log_path) as log:
            subprocess.run(  # noqa: S603
                [self._programs / "initdb", "--pgdata", self.data_dir, *options],
                check=True,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                timeout=self._start_timeout,
                cwd=self.socket_dir,
                env=server_environment(),
                **(self._account.popen_options() if self._account else {}),
            )

    def _launch(self) -> None:
        settings = {"timezone": "UTC", "log_timezone": "UTC", "unix_socket_permissions": "0700"} | self._settings
        # These name places of ours; a caller's value would only make the server unreachable.
        settings |= {
            "listen_addresses": _LOOPBACK if self._tcp else "",
            "port": str(self._port),
            "unix_socket_directories": str(self.socket_dir),
            "hba_file": str(self.socket_dir / "hba.conf"),
        }
        command = [str(self._programs / "postgres"), "-D", str(self.data_dir)]
        for name, value in settings.items():
            command += ["-c", f"{name}={value}"]
        with self._place.append(self.log_path) as log:
            self._process = OwnedProcess(
                command,
                log,
                account=self._account,
                cwd=self.socket_dir,
                outlive_owner=self._outlive_owner,
            )
        self._await_ready(self._process)
        if self._tcp:
            self._set_password()
            self._keep_address()

    def _await_ready(self, process: OwnedProcess) -> None:
        deadline = time.monotonic() + self._start_timeout
        while not _is_ready(self.data_dir / "postmaster.pid", process.pid):
            if process.status is not None:
                raise ServerStartError(f"postgres ended with status {process.status}", self._log_tail())
            if time.monotonic() > deadline:
                raise ServerStartError(f"postgres was not ready in {self._start_timeout:g} s", self._log_tail())
            time.sleep(_POLL_SECONDS)

    def _restore_address(self) -> None:
        """Use the port and password of the last start on this data directory, if the port is free."""
        try:
            port, password = (self.data_dir / _ADDRESS).read_text().split()
        except (OSError, ValueError):
            return
        if _is_free(int(port)):
            self._port, self._password = int(port), password

    def _keep_address(self) -> None:
        if self._given_data_dir is not None:
            (self.data_dir / _ADDRESS).unlink(missing_ok=True)
            self._place.write(str(self.data_dir / _ADDRESS), f"{self._port} {self._password}\n")

    def _set_password(self) -> None:
        place = make_conninfo(host=str(self.socket_dir), port=self._port, user=SUPERUSER, dbname="postgres")
        with psycopg.connect(place, autocommit=True) as connection:
            statement = sql.SQL("ALTER ROLE {} PASSWORD {}")
            connection.execute(statement.format(sql.Identifier(SUPERUSER), sql.Literal(self._password)))

    def _shut_down(self) -> None:
        for how in (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL):  # fast, immediate, none at all
            if not self.is_running:
                return
            with suppress(subprocess.TimeoutExpired):
                self._end(how)

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None:
            self._process.end(how, timeout=self._stop_timeout)
            self._release()

    def _release(self) -> None:
        # The children of a killed server end on their own, but until then hold its shared memory: a start would fail.
        if self._process is not None:
            self._process.release(timeout=self._stop_timeout)
            self._process = None

    def _log_tail(self) -> str:
        if self._private is None or not self.log_path.exists():
            return ""
        return self.log_path.read_text(errors="replace")[-_LOG_TAIL:]


def _is_ready(pid_file: Path, pid: int) -> bool:
    # Line 1 is the pid: a file left by a crash also says "ready", of a server that is gone. Line 8 is the state.
    try:
        lines = pid_file.read_text().splitlines()
    except OSError:
        return False
    return len(lines) >= 8 and lines[0].strip() == str(pid) and lines[7].strip() == "ready"


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server does
        try:
            probe.bind((_LOOPBACK, port))
        except OSError:
            return False
        return True


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port


def _render(url: URL) -> str:
    # Old Alembic environments pass it to the parser of ini files, which takes a percent sign for an interpolation.
    return url.render_as_string(hide_password=False).replace("%2F", "/")

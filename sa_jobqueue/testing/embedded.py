"""A PostgreSQL server of our own, run from a directory of programs as a direct child of this process."""

import atexit
import os
import secrets
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, Final, Self

import psycopg
from psycopg import sql
from sqlalchemy import URL

from sa_jobqueue.errors import JobQueueError
from sa_jobqueue.testing.binaries import WHEEL_PACKAGE, read_version

SUPERUSER: Final = "postgres"
_UNPRIVILEGED: Final = "nobody"
_SOCKET_PORT: Final = 5432
_LOOPBACK: Final = "127.0.0.1"
_START_SECONDS: Final = 60.0
_STOP_SECONDS: Final = 10.0
_POLL_SECONDS: Final = 0.005
_LOG_TAIL: Final = 2_000
_ADDRESS: Final = "sa_jobqueue.address"  # in a data directory that is kept
_PREFIX: Final = "sajq-"
# macOS takes 103 bytes of path, Linux 107; the name of the socket and mkdtemp's eight characters are in it.
_SOCKET_PATH_BYTES: Final = 103
_LONGEST_NAME: Final = f"{_PREFIX}12345678/.s.PGSQL.65535"

Account = tuple[int, int]
"""User and group that server processes run under."""


class ServerStartError(JobQueueError):
    """The PostgreSQL server did not start; its files were removed.

    `log` is the end of the output of the server and `initdb`. `remedy`: what to do; None for that of the provider.
    """

    def __init__(self, reason: str, log: str = "", *, remedy: str | None = None) -> None:
        self.reason = reason
        self.log = log
        self.remedy = remedy
        super().__init__(f"{reason}\n{log}".rstrip())


class PostgresServer(ABC):
    """A running server: its URL, its release, and a way to stop it. As a context manager it is stopped at the end."""

    url: str
    """The server's URL."""
    version: tuple[int, ...]
    """The server's release, such as (18, 6)."""

    @abstractmethod
    def stop(self) -> None:
        """Stop it, or delete its databases."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()


class EmbeddedServer(PostgresServer):
    """Run one PostgreSQL server that ends when its owner, this process, ends.

    It listens on a socket in a directory of mode 0700, and with `tcp` also on a free port of 127.0.0.1 with a generated
    password; a given `data_dir` keeps both, so that the URL is the same at the next start, unless the port is taken then.
    Started by root, it runs as `nobody`. The server ends with this process, even after kill -9, in which case the temporary
    directory is not removed.

    `crash()` loses the state of the server, as a power failure would, but not on the disk; committed rows are recovered.
    Raises: `ServerStartError` when it cannot be started.
    """

    def __init__(
        self, bin_dir: Path, settings: Mapping[str, str] | None = None, data_dir: Path | None = None, *, tcp: bool = False
    ) -> None:
        self.bin_dir = bin_dir.absolute()  # the server runs in another directory than we do
        self._settings = dict(settings or {})
        self._given_data_dir = data_dir.absolute() if data_dir is not None else None
        self._tcp = tcp
        self._password = secrets.token_urlsafe(16)
        self._port = _SOCKET_PORT
        self._owner: int | None = None
        self._place: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        """Make a database cluster unless the data directory has one, and return once the server takes connections."""
        if self.is_running:
            return self
        try:
            if self._place is None:
                self._prepare()
            if not (self.data_dir / "PG_VERSION").exists():
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
        # Data that is removed next needs no checkpoint, which can take long on a busy disk.
        self._shut_down(keeping_data=self._given_data_dir is not None)
        atexit.unregister(self.stop)
        if self._place is not None:
            shutil.rmtree(self._place, ignore_errors=True)
            self._place = None

    def restart(self) -> None:
        """Shut the server down and start it again on the same data, at the same URL."""
        self._shut_down(keeping_data=True)
        self.start()

    def crash(self) -> None:
        """Kill the server with SIGKILL and return when all its processes are gone. `start()` then recovers the data."""
        self._end(signal.SIGKILL)

    @property
    def is_running(self) -> bool:
        """Whether its process is there."""
        if self._process is not None and self._process.poll() is not None:
            self._release()
        return self._process is not None

    @property
    def pid(self) -> int:
        """The process that `kill -INT` stops. Raises: `ServerStartError` when the server is not running."""
        if self._process is None:
            raise ServerStartError("the server is not running")
        return self._process.pid

    @property
    def socket_dir(self) -> Path:
        """Directory of its socket."""
        if self._place is None:
            raise ServerStartError("the server was not started")
        return self._place

    @property
    def log_path(self) -> Path:
        """Log of the server."""
        return self.socket_dir / "server.log"

    @property
    def data_dir(self) -> Path:
        """Data directory."""
        return self._given_data_dir or self.socket_dir / "data"

    @property
    def socket_url(self) -> str:
        """The URL through the private socket, which asks for no password."""
        query = {"host": str(self.socket_dir), "port": str(self._port)}
        return _render(URL.create("postgresql+psycopg", SUPERUSER, database="postgres", query=query))

    def __enter__(self) -> Self:
        return self.start()

    def _prepare(self) -> None:
        self._owner = os.getpid()
        self._account = server_account(self._given_data_dir)
        # Not initdb's own rules: the socket's directory is what protects the socket, and TCP is open to every local user.
        rules = f"local all all trust\nhost all all {_LOOPBACK}/32 scram-sha-256\n"
        self._place = private_dir(self._account, {"hba.conf": rules, "server.log": ""})
        atexit.register(self.stop)
        if self._tcp:
            self._port = _free_port()
            self._restore_address()
        self._programs = programs_for(self.bin_dir, self._account, self._place)
        version = read_version(self.bin_dir)
        if version is None:
            raise ServerStartError(f"{self.bin_dir / 'postgres'} does not run")
        self.version, self.url = version, self.socket_url
        if self._tcp:
            over_tcp = URL.create(
                "postgresql+psycopg", SUPERUSER, self._password, _LOOPBACK, self._port, database="postgres"
            )
            self.url = _render(over_tcp)

    def _init_database(self) -> None:
        data_dir = self.data_dir
        data_dir.parent.mkdir(parents=True, exist_ok=True)
        data_dir.mkdir(mode=0o700, exist_ok=True)
        if not any(data_dir.iterdir()):
            _give(data_dir, self._account)
        options = ["--auth=trust", "--no-sync", "--locale=C", "--encoding=UTF8", f"--username={SUPERUSER}"]
        with self._log() as log:
            subprocess.run(  # noqa: S603
                [self._programs / "initdb", "--pgdata", data_dir, *options],
                check=True,
                timeout=_START_SECONDS,
                **self._process_options(log),
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
        # The write end goes to the server and all its descendants: end of file means that every one of them is gone.
        self._family, family_end = os.pipe()
        try:
            with self._log() as log:
                process = subprocess.Popen(  # noqa: S603 - our own command, and no shell
                    command,
                    pass_fds=(family_end,),
                    start_new_session=True,  # Ctrl-C in the terminal would stop it before its clients
                    **self._process_options(log),
                )
        except BaseException:
            os.close(self._family)
            raise
        finally:
            os.close(family_end)
        # It reads from a pipe whose other end only this process holds: the kernel closes it even after kill -9.
        self._watchdog = subprocess.Popen(  # noqa: S603 - no input of anyone's, the pid is an argument
            ["/bin/sh", "-c", 'read -r _; kill -QUIT "$0"', str(process.pid)],
            stdin=subprocess.PIPE,
            start_new_session=True,
            cwd="/",
            **run_as(self._account),
        )
        self._process = process
        self._await_ready(process)
        if self._tcp:
            self._set_password()
            self._keep_address()

    def _log(self) -> BinaryIO:
        # No link is followed: the directory is the account's.
        return os.fdopen(os.open(self.log_path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW), "ab")

    def _process_options(self, log: BinaryIO) -> dict[str, Any]:
        # Without what libpq reads in the environment: it means another server.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PG")} | {"LC_ALL": "C"}
        streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": subprocess.STDOUT}
        return {**streams, "cwd": self.socket_dir, "env": environment, **run_as(self._account)}

    def _await_ready(self, process: "subprocess.Popen[bytes]") -> None:
        deadline = time.monotonic() + _START_SECONDS
        while not _is_ready(self.data_dir / "postmaster.pid", process.pid):
            if (status := process.poll()) is not None:
                raise ServerStartError(f"postgres ended with status {status}", self._log_tail())
            if time.monotonic() > deadline:
                raise ServerStartError(f"postgres was not ready in {_START_SECONDS:g} s", self._log_tail())
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
            path = self.data_dir / _ADDRESS
            path.unlink(missing_ok=True)
            _write(path, f"{self._port} {self._password}\n", self._account)

    def _set_password(self) -> None:
        place: dict[str, Any] = {"host": str(self.socket_dir), "port": self._port, "user": SUPERUSER, "dbname": "postgres"}
        with psycopg.connect(**place, autocommit=True) as connection:
            statement = sql.SQL("ALTER ROLE {} PASSWORD {}")
            connection.execute(statement.format(sql.Identifier(SUPERUSER), sql.Literal(self._password)))

    def _shut_down(self, *, keeping_data: bool) -> None:
        fast = (signal.SIGINT,) if keeping_data else ()
        for how in (*fast, signal.SIGQUIT, signal.SIGKILL):  # then immediate, and none at all
            if not self.is_running:
                return
            with suppress(subprocess.TimeoutExpired):
                self._end(how)

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None:
            self._dismiss_watchdog()
            self._process.send_signal(how)
            self._process.wait(_STOP_SECONDS)
            self._release()

    def _dismiss_watchdog(self) -> None:
        # Before the server is reaped, while its pid is its own.
        self._watchdog.kill()
        self._watchdog.communicate()

    def _release(self) -> None:
        # The children of a killed server end on their own, but until then hold its shared memory: a start would fail.
        self._dismiss_watchdog()
        descendants = select.poll()
        descendants.register(self._family)
        descendants.poll(_STOP_SECONDS * 1_000)
        os.close(self._family)
        self._process = None

    def _log_tail(self) -> str:
        if self._place is None or not self.log_path.exists():
            return ""
        return self.log_path.read_text(errors="replace")[-_LOG_TAIL:]


def server_account(data_dir: Path | None) -> Account | None:
    """Return the user that runs the server: None for the current one, another only if the current one is root.

    PostgreSQL refuses to run as root. A data directory that belongs to another user is served by that user; any other by
    `nobody`, since `initdb` looks up its user by name, which an arbitrary number does not have.

    Raises: `PermissionError` when the current user is root and the other user does not exist.
    """
    if os.geteuid() != 0:
        return None
    if data_dir is not None and data_dir.exists():
        status = data_dir.stat()
        if status.st_uid != 0:
            return status.st_uid, status.st_gid
    import pwd  # not on Windows, which has no root

    try:
        entry = pwd.getpwnam(_UNPRIVILEGED)
    except KeyError as error:
        raise PermissionError(f"PostgreSQL refuses root, and there is no user {_UNPRIVILEGED!r} to run it") from error
    return entry.pw_uid, entry.pw_gid


def private_dir(account: Account | None, files: Mapping[str, str]) -> Path:
    """Create a temporary directory with files for an account, None for the caller; its path has room for a socket's name.

    It is in the directory for temporary files, or in /tmp where a path there would be too long or closed to the account.
    """
    preferred = Path(tempfile.gettempdir())
    fits = len(os.fsencode(preferred / _LONGEST_NAME)) <= _SOCKET_PATH_BYTES
    is_usable = fits and (account is None or is_open_to_others(preferred))
    directory = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=preferred if is_usable else "/tmp"))  # noqa: S108
    for name, text in files.items():
        _write(directory / name, text, account)
    _give(directory, account)
    return directory


def is_open_to_others(directory: Path) -> bool:
    """Return whether an account that owns nothing on the way can reach `directory`, by its permission bits."""
    resolved = directory.resolve()
    return all(step.stat().st_mode & 0o001 for step in (resolved, *resolved.parents))


def programs_for(bin_dir: Path, account: Account | None, place: Path) -> Path:
    """Return the directory from which `account` can run the programs of `bin_dir`: itself, or a copy in `place`.

    Raises: `PermissionError` when the account cannot run them and they are not a wheel's, which alone is small enough
    to copy.
    """
    # Tried, not reckoned from mode bits: the directories on the way, the file and its libraries all have a say.
    if account is None or read_version(bin_dir, cwd="/", **run_as(account)) is not None:
        return bin_dir
    package = next((parent for parent in bin_dir.parents if parent.name == WHEEL_PACKAGE), None)
    if package is None:
        raise PermissionError(f"the account with uid {account[0]} cannot run the programs in {bin_dir}")
    # A wheel in an environment under /root. Its programs look for their libraries in the sibling directory.
    for source in (package, package.with_name(f"{WHEEL_PACKAGE}.libs")):
        if source.exists():
            copy = place / source.name
            shutil.copytree(source, copy, symlinks=True, ignore=shutil.ignore_patterns("include", "__pycache__"))
            for path in (copy, *copy.rglob("*")):
                if not path.is_symlink():
                    mode = path.stat().st_mode
                    path.chmod(mode | 0o444 | (0o111 if path.is_dir() or mode & 0o100 else 0))
    return place / bin_dir.relative_to(package.parent)


def run_as(account: Account | None) -> dict[str, Any]:
    """Return the arguments that make `subprocess.Popen` run a program under an account, in no other group."""
    return {} if account is None else {"user": account[0], "group": account[1], "extra_groups": []}


def _write(path: Path, text: str, account: Account | None) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    _give(path, account)


def _give(path: Path, account: Account | None) -> None:
    if account is not None:
        os.chown(path, *account)


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

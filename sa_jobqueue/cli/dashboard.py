"""`sa-jobqueue dashboard`: serve the dashboard to a browser on this machine."""

from __future__ import annotations

import ipaddress
import re
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import click
from sqlalchemy import URL, Engine, create_engine

from sa_jobqueue.cli import _options as opts
from sa_jobqueue.cli._output import echo, print_result
from sa_jobqueue.errors import JobQueueError
from sa_jobqueue.errors.extras import install_command

if TYPE_CHECKING:
    import uvicorn
    from starlette.types import ASGIApp

PORT: Final = 8321


@click.command()
@opts.port_option("--port", "Port to listen on; 0 for a free one.", default=PORT)
@opts.address_option("--address", "Address to listen on; others than loopback need --authorize.")
@click.option("--read-only", is_flag=True, help="Refuse all changes, and open no connection that could write.")
@click.option(
    "--authorize",
    "authorize_path",
    metavar="MODULE:FUNCTION",
    help="Function that takes a request and returns an Access, or None to refuse it; replaces the printed token.",
)
@click.option(
    "--host",
    "hosts",
    multiple=True,
    metavar="NAME",
    help="Name to accept in the Host header besides loopback; may be repeated.",
)
@click.option("--root-path", default="", metavar="PATH", help="Prefix under which a proxy serves it, such as /jobs.")
@click.option(
    "--trace-url",
    metavar="URL",
    help="Link to a trace in your tracing backend, such as https://jaeger.example/trace/{trace_id}.",
)
@opts.json_option
@opts.urls_option("side by side")
@opts.app_option
def dashboard(
    *, urls: tuple[str, ...], app: str | None, port: int, address: str, authorize_path: str | None, root_path: str,
    **options: Any,
) -> None:  # fmt: skip
    """Serve the dashboard to a browser: see the queue, find out why a job does not run, and act.

    Prints a link with a token that works once, for one browser, until the command ends. Ctrl-C or SIGTERM stops it.
    Requires the extra "dashboard".
    """
    authorize = opts.load_object(authorize_path) if authorize_path else None
    if authorize is not None and not callable(authorize):
        raise click.UsageError(f"--authorize: {authorize_path!r} is not a function, but of type {type(authorize).__name__}")
    if root_path and not root_path.startswith("/"):
        raise click.UsageError(f"--root-path: must start with /, such as /jobs, got {root_path!r}")
    if authorize is None and not _is_loopback(address):
        raise click.UsageError(f"--address {address!r} can be reached from other machines: pass --authorize as well")
    model, databases = opts.load_model(app), [opts.parse_url(url) for url in urls or (None,)]
    for url in databases:
        try:
            with opts.Database(url, model).session():
                pass  # reports an unreachable database or a wrong schema version
        except JobQueueError as error:
            if len(databases) == 1:
                raise
            echo(f"warning: database {url.database} is not served until this ends: {error}", err=True)
    with opts.usage_errors():
        application, token = make_app(databases, model, authorize=authorize, **options)
    with listening(application, address=address, port=port, root_path=root_path) as (server, listener):
        where = f"http://{_in_url(address)}:{listener.getsockname()[1]}{root_path.rstrip('/')}/"
        for number in (signal.SIGTERM, signal.SIGINT):
            # Also before uvicorn handles signals, and after: it raises the signal that stopped it again.
            signal.signal(number, lambda *_: setattr(server, "should_exit", True))
        link = f"{where}{f'?token={token}' if token else ''}"
        print_result({"url": link}, f"serving the dashboard on {link}", indent=None)
        server.run(sockets=[listener])


def make_app(
    urls: Sequence[URL],
    model: Any,
    *,
    read_only: bool,
    authorize: Callable[..., Any] | None = None,
    hosts: tuple[str, ...] = (),
    trace_url: str | None = None,
) -> tuple[ASGIApp, str | None]:
    """Return the application, and the token of its link unless there is `authorize`. Raises: click.ClickException."""
    require_extra()
    from sa_jobqueue.dashboard import ALL_PERMISSIONS, Access, Source
    from sa_jobqueue.dashboard import dashboard as made
    from sa_jobqueue.dashboard.guard import LOOPBACK
    from sa_jobqueue.dashboard.tokens import OneTimeToken

    sources = [
        Source(name=name, engine=_engine(url), jobs=model, operator=None if read_only else _engine(url))
        for name, url in zip(_names(urls), urls, strict=True)
    ]
    accepted = [*LOOPBACK, *hosts]
    if authorize is not None:
        return made(sources, authorize=authorize, hosts=accepted, trace_url=trace_url), None
    tokens = OneTimeToken(Access(user=opts.user_name()[:200], permissions=ALL_PERMISSIONS, payload_types=["*"]))
    app = made(sources, authorize=tokens.authorize, hosts=accepted, trace_url=trace_url)
    return tokens.wrap(app), tokens.token


def _names(urls: Sequence[URL]) -> Iterator[str]:
    """Yield the name of each database in the addresses of its pages; that of a single one is "queue"."""
    for number, url in enumerate(urls, 1):
        plain = re.sub(r"[^A-Za-z0-9_-]+", "-", url.database or "")[:40] or "queue"
        is_taken = [listed_url.database for listed_url in urls].count(url.database) > 1
        yield "queue" if len(urls) == 1 else f"{plain}-{number}" if is_taken or plain != url.database else plain


def require_extra() -> None:
    """Import the dashboard's modules. Raises: click.ClickException if one of them is not installed."""
    try:
        for name in ("sa_jobqueue.dashboard", "uvicorn"):
            import_module(name)
    except ModuleNotFoundError as error:
        raise click.ClickException(f"the dashboard is not installed: {install_command('dashboard')}") from error


@contextmanager
def listening(
    app: ASGIApp, *, address: str, port: int, root_path: str = ""
) -> Iterator[tuple[uvicorn.Server, socket.socket]]:
    """Yield a server that is not started yet, and the socket that it will listen on. Raises: click.ClickException."""
    require_extra()
    import uvicorn

    from sa_jobqueue.cli._http import BoundedH11Protocol

    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((address, port))
            listener.listen(128)
        except OSError as error:
            raise click.ClickException(
                f"cannot listen on {address}, port {port}: {error.strerror}{opts.free_port(error)}"
            ) from error
        config = uvicorn.Config(
            app,
            http=BoundedH11Protocol,
            log_level="warning",
            access_log=False,
            server_header=False,
            lifespan="off",
            root_path=root_path.rstrip("/"),
        )
        yield uvicorn.Server(config), listener
    finally:
        listener.close()


@contextmanager
def served(app: ASGIApp, *, address: str = "127.0.0.1", port: int = 0) -> Iterator[str]:
    """Serve an application in a thread while the block runs; yield its URL without a slash at the end."""
    with listening(app, address=address, port=port) as (server, listener):
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="dashboard", daemon=True)
        thread.start()
        try:
            yield f"http://{_in_url(address)}:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(10)


def _engine(url: URL) -> Engine:
    return create_engine(url, pool_size=3, max_overflow=7, pool_pre_ping=True, connect_args={"client_encoding": "UTF8"})


def _is_loopback(address: str) -> bool:
    if address == "localhost":
        return True
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def _in_url(address: str) -> str:
    return f"[{address}]" if ":" in address else address

"""`sa-jobqueue demo`: the command."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from types import FrameType
from typing import Any, NoReturn

import click
from sqlalchemy import Engine
from sqlalchemy.engine import make_url
from sqlalchemy.orm import Session

from sa_jobqueue.cli._options import URL_VARIABLE, Database, json_option, parse_url
from sa_jobqueue.cli._output import echo, print_fields, print_json
from sa_jobqueue.cli.demo import app, run
from sa_jobqueue.db.connections import shown
from sa_jobqueue.display.progress import ProgressLines
from sa_jobqueue.testing.embedded import EmbeddedServer
from sa_jobqueue.testing.servers import PostgresServer, ServerOptions, open_server

Say = Callable[[str], None]


@click.command()
@click.option(
    "--url",
    "database_url",
    envvar=URL_VARIABLE,
    show_envvar=True,
    metavar="URL",
    help=f"Use this database, with a separate schema {app.SCHEMA}.  [default: start a PostgreSQL server]",
)
@click.option(
    "--workers", type=click.IntRange(1, 64), metavar="N", default=2, show_default=True, help="Number of worker processes."
)
@click.option("--dashboard", "with_dashboard", is_flag=True, help="Serve the dashboard, also after the run, until Ctrl-C.")
@click.option("--files", "limit", type=click.IntRange(min=50), metavar="N", help="Maximum number of files.  [default: all]")
@json_option
def demo(*, database_url: str | None, workers: int, with_dashboard: bool, limit: int | None, as_json: bool) -> None:
    """Count functions, classes and imports in Python's standard library, one job per file.

    Starts PostgreSQL and worker processes, kills one worker, and checks the result against a count without the queue.
    Exits with status 1 if the check fails.
    """
    if with_dashboard:
        # Before a server is started: the error would stop it again.
        from sa_jobqueue.cli.dashboard import require_extra

        require_extra()
    # As Ctrl-C does: runs every `finally`, so that no process of the demo is left running.
    signal.signal(signal.SIGTERM, _end)
    say = partial(echo, err=as_json)  # standard output is for the JSON document only
    with (
        _server(database_url, say) as server,
        run.prepared(server.url) as engine,
        _dashboard(server.url, with_dashboard, say) as address,
    ):
        found = _run(server, engine, count=workers, limit=limit, say=say)
        if as_json:
            print_json(found)
        else:
            _print(found)
        if address:
            say(f"the dashboard is still served on {address}; Ctrl-C ends the demo")
            with suppress(KeyboardInterrupt):
                threading.Event().wait()
    if not found["ok"]:
        sys.exit(1)


@contextmanager
def _dashboard(url: str, is_wanted: bool, say: Say) -> Iterator[str | None]:
    if not is_wanted:
        yield None
        return
    from sa_jobqueue.cli.dashboard import make_app, served

    made, token = make_app([make_url(url)], app.Job, read_only=False)
    with served(made) as where:
        address = f"{where}/?token={token}"
        say(f"serving the dashboard on {address}")
        yield address


def _run(server: PostgresServer, engine: Engine, *, count: int, limit: int | None, say: Say) -> dict[str, Any]:
    paths = run.find(app.LIBRARY, limit)
    workers = run.Workers(server.url)
    with ProgressLines("demo", write=say, interval=1) as lines:
        try:
            say(f"migrated the schema {app.SCHEMA}; enqueueing {len(paths)} files of {app.LIBRARY}")
            run.enqueue(engine, paths, lines)
            say(f"started workers {', '.join(str(workers.start()) for _ in range(count))}")
            killed = run.work(engine, workers, len(paths), lines)
        finally:
            workers.stop()
        lines.begin("all jobs have ended; counting without the queue to compare")
        begun = time.perf_counter()
        plain = run.count_plainly(paths)
        plain_seconds = time.perf_counter() - begun
    with Session(engine) as session:
        found = run.report(session, plain, killed)
    pids = [*workers.pids, *([server.pid] if isinstance(server, EmbeddedServer) else [])]
    return found | {"plain_seconds": plain_seconds, "pids": pids}


@contextmanager
def _server(url: str | None, say: Say) -> Iterator[PostgresServer]:
    """Start a server, or use that of the URL."""
    given = "auto"
    if url:
        parsed = parse_url(url)
        with Database(parsed, app.Job).connection():
            pass  # reports an unreachable database as other commands do
        given = parsed.render_as_string(hide_password=False)
    options = ServerOptions(settings={"shared_buffers": "64MB", "max_connections": "50"})
    with open_server(given, options) as server:
        version = ".".join(map(str, server.version))
        say(f"PostgreSQL {version} {'found' if url else 'started'} at {shown(make_url(server.url))}")
        yield server


def _print(found: dict[str, Any]) -> None:
    rescued_from = ", ".join(map(str, found["killed_pids"])) or "-"
    plain = f"{found['plain_seconds']:.1f} s"
    errors = ", ".join(f"{count} {error}" for error, count in found["dead_by_error"].items())
    fields = {
        "files": found["files"],
        "jobs completed": found["completed"],
        "retries": found["retries"],
        "rescued": f"{found['rescued']} (from killed worker {rescued_from})",
        "dead letters": f"{found['dead_letters']} ({errors or 'the test data of the standard library is not installed'})",
        "duration": f"{found['seconds']:.1f} s, with the kill; the same work without a queue, in one process: {plain}",
        "check": "every file has one result or one dead letter, and all counts are equal" if found["ok"] else "FAILED",
    }
    print_fields("sa-jobqueue demo", fields)
    for complaint in found["complaints"]:
        echo(f"check failed: {complaint}", err=True)


def _end(number: int, frame: FrameType | None) -> NoReturn:
    sys.exit(128 + number)

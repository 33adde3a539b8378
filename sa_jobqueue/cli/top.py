"""`sa-jobqueue top`: watch the queue in the terminal."""

from __future__ import annotations

from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any

import click

from sa_jobqueue.cli._options import Database, duration, with_database
from sa_jobqueue.db.session_settings import own_engine
from sa_jobqueue.errors import JobQueueError
from sa_jobqueue.observe.health.overview import overviews


class MissingTopExtraError(JobQueueError, ImportError):
    """textual, which `top` needs, is not installed: run pip install "sa-jobqueue[top]"."""

    def __init__(self) -> None:
        super().__init__('textual is not installed: run pip install "sa-jobqueue[top]"')


@click.command()
@click.option(
    "--interval", type=duration, metavar="DURATION", default=timedelta(seconds=2), help="Refresh interval.  [default: 2s]"
)
@click.option(
    "--window",
    type=duration,
    metavar="DURATION",
    default=timedelta(minutes=1),
    help="Period that rates are measured over.  [default: 60s]",
)
@click.option(
    "--heartbeat-timeout",
    type=duration,
    metavar="DURATION",
    default=timedelta(seconds=15),
    help="Heartbeat timeout of the workers.  [default: 15s]",
)
@click.option(
    "--timeout",
    type=duration,
    metavar="DURATION",
    default=timedelta(seconds=10),
    help="Timeout of one statement.  [default: 10s]",
)
@click.option("--screenshot", type=click.Path(dir_okay=False), help="Write one screen to this SVG file and exit.")
@with_database
def top(database: Database, /, *, interval: timedelta, screenshot: str | None, **options: Any) -> None:
    """Watch the queue: findings, queues, workers, longest running jobs and latest failures.

    Each refresh costs as much as `sa-jobqueue health`, on one connection; SELECT on the queue's tables is enough. Keys are
    shown at the bottom; Tab moves between tables, s sorts the focused one. Requires "sa-jobqueue[top]".
    """
    try:
        from sa_jobqueue.cli._top import ReadOverview, TopApp
    except ModuleNotFoundError as error:
        raise MissingTopExtraError from error
    with database.session():
        pass  # reports an unreachable database or a wrong schema version
    engine = own_engine(database.url)

    def connect() -> AbstractContextManager[ReadOverview]:
        return overviews(engine, model=database.model, **options)

    app = TopApp(connect, interval=interval, screenshot=screenshot)
    app.run(headless=screenshot is not None, size=(150, 40) if screenshot is not None else None)
    if app.return_code:
        raise click.exceptions.Exit(app.return_code)

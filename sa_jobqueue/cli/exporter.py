"""`sa-jobqueue exporter`: what the database knows of a queue, for Prometheus or through OpenTelemetry."""

from __future__ import annotations

import signal
import threading
from datetime import timedelta
from typing import Final

import click

from sa_jobqueue.cli._options import Database, seconds, with_database
from sa_jobqueue.cli._output import echo
from sa_jobqueue.db.session_settings import own_engine
from sa_jobqueue.observe import telemetry
from sa_jobqueue.observe.health import Health, health
from sa_jobqueue.observe.metrics.serving import new_registry, serve_metrics

PORT: Final = 9464
"""The port that OpenTelemetry gives exporters for Prometheus by default."""


@click.command()
@click.option("--port", type=click.IntRange(0, 65535), default=PORT, show_default=True, help="0 means a free one.")
@click.option("--address", default="127.0.0.1", show_default=True, help="Where to listen; 0.0.0.0 for other machines.")
@click.option(
    "--window", type=seconds, metavar="SECONDS", default=timedelta(minutes=1), help="What rates cover.  [default: 60]"
)
@click.option(
    "--heartbeat-timeout",
    type=seconds,
    metavar="SECONDS",
    default=timedelta(seconds=15),
    help="How long a worker may be silent, as the workers have it.  [default: 15]",
)
@click.option(
    "--opentelemetry",
    is_flag=True,
    help="Instead of serving them: through the SDK that --app's module or `opentelemetry-instrument` has set up.",
)
@with_database
def exporter(
    database: Database,
    /,
    *,
    port: int,
    address: str,
    window: timedelta,
    heartbeat_timeout: timedelta,
    opentelemetry: bool,
) -> None:
    """Serve the figures of a health report as metrics, read anew at every scrape. One is enough for a database.

    SIGTERM or Ctrl-C ends it. Needs: pip install "sa-jobqueue[metrics]"; with --opentelemetry "sa-jobqueue[otel]" and an
    SDK.
    """
    if opentelemetry:
        telemetry.check_sdk()
    registry = None if opentelemetry else new_registry()
    with database.session():
        pass  # says what is wrong with the tables, where something is
    engine = own_engine(database.url)

    def read() -> Health:
        return health(engine, window=window, heartbeat_timeout=heartbeat_timeout, model=database.model)

    ended = _ending()
    if registry is None:
        telemetry.observe_database(read)
        echo("observing through OpenTelemetry")
        ended.wait()  # the SDK exports what there is once more when the process ends
        return
    from sa_jobqueue.observe.metrics.database import DatabaseCollector

    DatabaseCollector(read).register(registry)
    with serve_metrics(registry, port=port, address=address) as serving:
        echo(f"serving metrics on http://{address}:{serving}/metrics")
        ended.wait()


def _ending() -> threading.Event:
    """Return what is set when somebody asks this process to end."""
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    return ended

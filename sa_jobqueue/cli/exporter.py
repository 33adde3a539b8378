"""`sa-jobqueue exporter`: export a queue's metrics to Prometheus or OpenTelemetry."""

from __future__ import annotations

import signal
from contextlib import ExitStack
from typing import Any, Final

import click

from sa_jobqueue.cli import _options as opts
from sa_jobqueue.cli._output import print_result
from sa_jobqueue.cli._serving import ending
from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.observe import telemetry
from sa_jobqueue.observe.health import Health, health
from sa_jobqueue.observe.metrics.serving import new_registry, serve_metrics

PORT: Final = 9464
"""OpenTelemetry's default port of Prometheus exporters."""


@click.command()
@opts.port_option("--port", "Port to listen on; 0 for a free one.", default=PORT)
@opts.address_option("--address", "Address to listen on; 0.0.0.0 to accept other machines.")
@opts.window_option
@opts.heartbeat_timeout_option
@click.option(
    "--opentelemetry",
    is_flag=True,
    help="Export through the OpenTelemetry SDK that --app's module or `opentelemetry-instrument` configures; serve nothing.",
)
@opts.reading
def exporter(database: opts.Database, /, *, port: int, address: str, opentelemetry: bool, **options: Any) -> None:
    """Serve the figures of a health report as metrics, at most one report in 5 s. Run one per database.

    SIGTERM or Ctrl-C stops it. Requires the extra "metrics"; with --opentelemetry the extra "otel" and an SDK.
    """
    if opentelemetry:
        telemetry.check_sdk()
    registry = None if opentelemetry else new_registry()
    engine = database.engine()

    def read() -> Health:
        return health(engine, model=database.model, **options)

    ended = ending(signal.SIGTERM, signal.SIGINT)
    if registry is None:
        telemetry.observe_database(read)
        print_result({"url": None}, "exporting metrics through OpenTelemetry", indent=None)
        ended.wait()  # the SDK exports once more at exit
        return
    from sa_jobqueue.observe.metrics.database import DatabaseCollector

    registry.register(DatabaseCollector(read))
    with ExitStack() as stack:
        try:
            serving = stack.enter_context(serve_metrics(registry, port=port, address=address))
        except InvalidOptionError as error:  # as the dashboard: not wrong usage
            raise click.ClickException(f"{error.reason}{opts.free_port(error.__cause__)}") from error
        url = f"http://{address}:{serving}/metrics"
        print_result({"url": url}, f"serving metrics on {url}", indent=None)
        ended.wait()

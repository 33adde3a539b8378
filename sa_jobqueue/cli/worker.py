"""`sa-jobqueue worker`: run jobs in one or more processes."""

from __future__ import annotations

import asyncio
import logging
import os
import shlex
import sys
from collections import Counter
from contextlib import ExitStack, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import click
from sqlalchemy import Engine, create_engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.orm import Session

from sa_jobqueue.cli import _options as opts
from sa_jobqueue.cli._output import echo
from sa_jobqueue.cli._serving import EXIT_PATIENCE, configure_logging, serve, serve_probes
from sa_jobqueue.cli._supervisor import Supervisor, worker_command
from sa_jobqueue.cli._watchdog import DEFAULT_LIMIT, VARIABLES, watching
from sa_jobqueue.db.connections import noticing_death, unavailable
from sa_jobqueue.db.sessions import own_engine
from sa_jobqueue.db.urls import URL_VARIABLE, for_psycopg
from sa_jobqueue.errors import InvalidOptionError, SchemaError
from sa_jobqueue.errors.extras import install_command
from sa_jobqueue.events import Event, JobCancelled, JobCompleted, JobDied, JobRescheduled
from sa_jobqueue.observe import telemetry
from sa_jobqueue.observe.log_lines import MOST_LINES, capture
from sa_jobqueue.observe.metrics.serving import new_registry, serve_metrics
from sa_jobqueue.operations.workers import MOST_LOST, rescue_from
from sa_jobqueue.registry.job_queue import JobQueue
from sa_jobqueue.worker import Worker, WorkerGroup, WorkerOptions
from sa_jobqueue.worker.options import OPTIONS

_GIVEN: Final = "sa_jobqueue.worker_arguments"
"""In a context's `meta`: the arguments of the command."""

_log = logging.getLogger("sa_jobqueue.supervisor")


def queue_limits(text: Any) -> dict[str, int | None]:
    """Parse queue names separated by commas; `name=2` runs at most two jobs of that queue at a time.

    Raises: click.BadParameter.
    """
    limits: dict[str, int | None] = {}
    for part in filter(None, (part.strip() for part in str(text).split(","))):
        name, equals, limit = part.partition("=")
        if not name or (equals and not limit.isdecimal()):
            raise click.BadParameter(f"{part!r} is neither NAME nor NAME=NUMBER")
        limits[name] = int(limit) if equals else None
    try:
        WorkerOptions(queues=limits)
    except InvalidOptionError as error:
        raise click.BadParameter(f"{error.reason.partition(';')[0]}; B=2 limits queue B") from None
    return limits


def _own_options(command: opts.F) -> opts.F:
    """Add the options that `WorkerOptions` declares with their help."""
    defaults = WorkerOptions()
    for name, (_, _, words) in reversed(list(OPTIONS.items())):
        default = getattr(defaults, name)
        if words is not None:
            option = opts.duration_option if isinstance(default, timedelta) else opts.number_option
            command = option(f"--{name.replace('_', '-')}", words, default=default)(command)
    return command


class _Worker(click.Command):
    """A command that keeps its arguments as they were given, for the processes that it starts."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_GIVEN] = tuple(args)
        return super().parse_args(ctx, args)


@click.command(cls=_Worker)
@opts.application_argument("registry")
@opts.urls_option("with the slots of one process")
@click.option(
    "--engine",
    metavar="MODULE:ATTRIBUTE",
    help="The application's engine or session factory, instead of --url.",
)
@click.option(
    "--queues",
    type=queue_limits,
    metavar="A,B=2",
    help="Queues to serve; B=2 runs at most 2 jobs of B at a time.  [default: the queues of the handlers]",
)
@opts.number_option("--processes", "Number of worker processes, for CPU-bound handlers.", least=1, most=256, default=1)
@_own_options
@click.option("--name", metavar="NAME", help="Name of the worker in listings.  [default: the host name]")
@click.option("--no-listen", is_flag=True, help="Only poll; do not use LISTEN/NOTIFY.")
@opts.listen_url_option
@opts.port_option("--metrics-port", "Serve Prometheus metrics on this port; each of --processes uses the next one.")
@opts.address_option("--metrics-address", "Address of --metrics-port.")
@opts.port_option("--health-port", "Serve /livez and /readyz on this port; each of --processes uses the next one.")
@opts.address_option("--health-address", "Address of --health-port.")
@opts.duration_option(
    "--watchdog",
    "Exit with status 70 if a component is stuck for this long; 0 disables it.  [default: systemd's WatchdogSec, or 5m]",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="Minimum log level.",
)
@click.option(
    "--max-memory",
    type=opts.byte_count,
    metavar="SIZE",
    help="Drain and exit with status 75 when resident memory exceeds this, such as 1.5G.",
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Log format; json writes one object per line.",
)
@opts.number_option(
    "--capture-logs",
    "If an attempt fails, store the last N lines that it logged with its error.  [default: none]",
    least=1,
    most=MOST_LINES,
)
@click.option(
    "--opentelemetry", is_flag=True, help="Create spans and metrics, exported by the SDK that the application configures."
)
@click.option("--control-fd", type=int, hidden=True, help="Socket or reading end of a pipe from a parent process.")
@click.option(
    "--import",
    "modules",
    multiple=True,
    metavar="MODULE",
    help="Import a module that declares handlers; may be repeated.",
)
@click.option(
    "--reload", is_flag=True, help="Restart when a Python file below the working directory changes; needs watchfiles."
)
@click.option(
    "--until-idle",
    is_flag=True,
    help="Exit when no job is due, with status 1 if a job died. Jobs that are due later, such as failed ones before their "
    "next attempt, are left to the next run; schedules do not fire.",
)
@click.pass_context
def worker(
    context: click.Context, /, *, registry: str, modules: tuple[str, ...], urls: tuple[str, ...], engine: str | None,
    listen_url: str | None, no_listen: bool, queues: dict[str, int | None] | None, processes: int, reload: bool,
    until_idle: bool, metrics_port: int | None, metrics_address: str, health_port: int | None, health_address: str,
    watchdog: timedelta | None, log_level: str, log_format: str, capture_logs: int | None, opentelemetry: bool,
    control_fd: int | None, **settings: Any,
) -> None:  # fmt: skip
    """Run jobs with the handlers of MODULE:ATTRIBUTE, the application's JobQueue.

    SIGTERM or Ctrl-C drains: running jobs may finish within the shutdown timeout; the rest are released without counting the
    attempt. A second signal releases them immediately. With --processes, the parent restarts processes that die.

    Exit status: 0 drained, 1 an error, 2 wrong usage, 70 a component was stuck, 75 memory exceeded --max-memory.

    \b
    Example:
      sa-jobqueue worker shop.jobs:jobs --queues default,reports=2 --concurrency 20
    """
    with opts.usage_errors():
        options = WorkerOptions(queues=queues or (), listen=not no_listen, **settings)
    for flag, is_given in (("--reload", reload), ("--until-idle", until_idle)):
        if is_given and processes > 1:
            raise click.UsageError(f"{flag} is for one process: leave out --processes")
    if len(urls) > 1 and (engine or listen_url or processes > 1):
        raise click.UsageError("several databases are for one process, without --processes, --engine and --listen-url")
    if reload:
        context.exit(_reload(options.shutdown_timeout + options.cancel_timeout))
    jobs = opts.load_jobs(registry)
    for module in modules:
        opts.load_module(module)
    source = opts.load_object(engine) if engine else _engine(next(iter(urls), None), options)
    configure_logging(log_level, log_format)
    if processes > 1:
        # Check once before any process starts; otherwise each of them would fail repeatedly.
        used = opts.engine_of(source, engine)[0]
        with opts.Database(for_psycopg(used.url, option="engine"), jobs.model).session():
            pass
        environment = dict(os.environ)
        if not engine:  # through the environment, as other users can see arguments
            environment[URL_VARIABLE] = opts.parse_url(next(iter(urls), None)).render_as_string(hide_password=False)
        if listen_url:
            environment[opts.LISTEN_VARIABLE] = listen_url
        for variable in VARIABLES:
            environment.pop(variable, None)
        ports = {"metrics": metrics_port, "health": health_port}
        commands = [
            worker_command(*context.meta[_GIVEN], *_of_process(number, engine, options.name, ports))
            for number in range(1, processes + 1)
        ]
        supervisor = Supervisor(commands, environment, on_death=lambda died: _rescue(jobs, used, options, died))
        context.exit(asyncio.run(supervisor.run(control_fd)))
    with opts.usage_errors():
        application_engine, sessions = opts.engine_of(source, engine)
        job_worker: Worker | WorkerGroup
        if len(urls) > 1:
            job_worker = WorkerGroup(jobs, [_engine(url, options) for url in urls], options=options, app=registry)
        else:
            job_worker = Worker(jobs, application_engine, options=options, app=registry, listen_url=listen_url, **sessions)
    if capture_logs is not None:
        capture(capture_logs)
    if opentelemetry:
        telemetry.instrument()
        telemetry.subscribe(
            job_worker.events,
            types=jobs.registry.names,
            running=lambda: job_worker.running_by_type,
            slots=options.concurrency,
        )
    if control_fd is not None:
        with suppress(OSError):  # a pipe, whose other end needs no answer
            os.write(control_fd, job_worker.id.encode())
    ends = Counter[type[Event]]()
    job_worker.events.subscribe(lambda event: ends.update([type(event)]))
    with ExitStack() as stack:
        if metrics_port is not None:
            stack.enter_context(_measured(job_worker, jobs, options.concurrency, metrics_port, metrics_address))
        limit = stack.enter_context(watching(lambda: job_worker.vitals, limit=watchdog, end=os._exit)) or DEFAULT_LIMIT
        if health_port is not None:
            stack.enter_context(
                serve_probes(lambda: job_worker.vitals, limit=limit, port=health_port, address=health_address)
            )
        status = serve(job_worker, control=control_fd, until_idle=until_idle)
    if until_idle:
        words = {JobCompleted: "completed", JobRescheduled: "due again later", JobCancelled: "cancelled", JobDied: "died"}
        echo(", ".join(f"{ends[kind]} {word}" for kind, word in words.items()))
        status = status or int(ends[JobDied] > 0)
    context.exit(status)


def _reload(patience: timedelta) -> int:
    """Run this command in a child without `--reload`, again after each change; return the exit status."""
    try:
        from watchfiles import PythonFilter, run_process
    except ImportError:
        raise click.UsageError(f"--reload needs watchfiles: {install_command('reload')}") from None
    # As it was started: by `sa-jobqueue`, `python -m`, or a framework's command with options of its own.
    command = [sys.executable, *(argument for argument in sys.orig_argv[1:] if argument != "--reload")]
    run_process(
        Path.cwd(),
        target=shlex.join(command),
        target_type="command",
        watch_filter=PythonFilter(),
        callback=lambda changes: echo(f"reloading: {', '.join(sorted(path for _, path in changes))}", err=True),
        sigint_timeout=int((patience + EXIT_PATIENCE).total_seconds()),
    )
    return 0


def _of_process(number: int, engine: str | None, name: str | None, ports: dict[str, int | None]) -> list[str]:
    """Return the arguments of the `number`th process, which come after those of its parent and replace them."""
    arguments = {"processes": 1, "engine": engine, "name": name and f"{name[:60]}-{number}"}
    arguments |= {f"{server}-port": port and port + number - 1 for server, port in ports.items()}
    return [part for option, value in arguments.items() if value is not None for part in (f"--{option}", str(value))]


def _measured(job_worker: Worker | WorkerGroup, jobs: JobQueue[Any], slots: int, port: int, address: str) -> Any:
    """Serve a worker's metrics while the returned context manager is open."""
    registry = new_registry()
    from sa_jobqueue.observe.metrics.workers import subscribe

    subscribe(
        job_worker.events, registry, types=jobs.registry.names, running=lambda: job_worker.running_by_type, slots=slots
    )
    return serve_metrics(registry, port=port, address=address)


def _rescue(jobs: JobQueue[Any], used: Engine | AsyncEngine, options: WorkerOptions, worker_id: str) -> None:
    """Rescue the jobs of a worker that died; if that fails, other workers do so after the heartbeat timeout."""
    engine = own_engine(for_psycopg(used.url, option="engine"), **noticing_death(options.heartbeat_timeout))
    rescued, batch = 0, MOST_LOST
    try:
        while batch == MOST_LOST:
            with Session(engine) as session, session.begin():
                batch = rescue_from(session, worker_id, model=jobs.model)
            rescued += batch
    except (DBAPIError, SchemaError) as error:
        _log.warning(
            "jobs of dead worker %s not rescued, other workers will after the heartbeat timeout: %s",
            worker_id,
            unavailable(error, engine.url) if isinstance(error, DBAPIError) else error,
        )
    else:
        _log.info("worker %s died, %d jobs rescued", worker_id, rescued)


def _engine(url: str | None, options: WorkerOptions) -> Engine:
    # No overflow limit: handlers may take more than one each, and in a full pool they would wait for each other.
    parsed = opts.parse_url(url)
    connect_args = {
        name: value for name, value in noticing_death(options.heartbeat_timeout).items() if name not in parsed.query
    }
    return create_engine(parsed, pool_size=options.concurrency, max_overflow=-1, connect_args=connect_args)

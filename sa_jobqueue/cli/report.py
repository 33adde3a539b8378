"""`sa-jobqueue report`: one page about how a queue has been doing, from a database, an archive or both."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from functools import reduce
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from sqlalchemy import URL

from sa_jobqueue.cli._options import URL_VARIABLE, Database, app_option, instant, json_option, load_model, parse_url, seconds
from sa_jobqueue.cli._output import console, echo, print_json
from sa_jobqueue.db.urls import shown_url
from sa_jobqueue.errors import JobQueueError
from sa_jobqueue.history import JOBS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sa_jobqueue.spark.analytics import History

_NEEDS: Final = ("pyspark", "pyarrow", "pandas", "plotly", "jinja2")


class MissingReportExtraError(JobQueueError, ImportError):
    """A library that the report is made with is not installed; nothing was read."""


@click.command()
@click.argument("sources", nargs=-1, metavar="[PATH|URL]...")
@click.option("--html", "html_path", type=click.Path(dir_okay=False, path_type=Path), help="Write the page here.")
@json_option
@click.option("--since", type=instant, metavar="TIME", help="What ended then or later, in ISO 8601; UTC unless it says.")
@click.option("--until", type=instant, metavar="TIME", help="What ended before that.")
@click.option("--queue", "queues", multiple=True, help="Of this queue; may be repeated.")
@click.option("--type", "types", multiple=True, help="Of this job type; may be repeated.")
@click.option(
    "--target-wait", type=seconds, default="1", show_default=True, metavar="SECONDS", help="How long 95 % of jobs may wait."
)
@click.option("--slots", type=click.IntRange(min=1), help="How many jobs your workers run at once, for the utilisation.")
@app_option
def report(
    *,
    sources: tuple[str, ...],
    html_path: Path | None,
    as_json: bool,
    app: str | None,
    since: datetime | None,
    until: datetime | None,
    queues: tuple[str, ...],
    types: tuple[str, ...],
    target_wait: timedelta,
    slots: int | None,
) -> None:
    """Tell how a queue has been doing: throughput, waits, errors, dead letters, workflows, capacity.

    PATH is an archive, URL a database; both together are one history without double rows. Without either, the database is
    the one that SA_JOBQUEUE_URL names; with a password in the URL set that instead: arguments are public.
    The page is one file that loads nothing. Computed with Spark, which is started for it:
    pip install "sa-jobqueue[report]".
    """
    if html_path is None and not as_json:
        raise click.UsageError("say what to make: --html FILE, --json, or both")
    places = sources or tuple(filter(None, [os.environ.get(URL_VARIABLE)]))
    if not places:
        raise click.UsageError(f"no history: name an archive's PATH or a database's URL, or set {URL_VARIABLE}")
    urls = [parse_url(place) if _is_url(place) else None for place in places]
    if sum(url is not None for url in urls) > 1:
        raise click.UsageError("more than one database: their jobs are of different queues, make a report for each")
    if since is not None and until is not None and since >= until:
        raise click.UsageError("--since must be before --until")
    _check_installed()
    for place, url in zip(places, urls, strict=True):
        _check_there(place, url, app)
    from sa_jobqueue.report import collect, render

    shown = tuple(
        place if url is None else shown_url(url.set(drivername="postgresql"))
        for place, url in zip(places, urls, strict=True)
    )
    with _spoken(), _progress() as tell, ExitStack() as stack:
        tell("starting Spark")
        spark = stack.enter_context(_session())
        tell("reading")
        options = {"app": app} if app else {}
        history = stack.enter_context(_history(spark, places, options))
        tell("computing")
        contents = collect(
            history,
            sources=shown,
            since=since,
            until=until,
            queues=queues,
            types=types,
            target_wait=target_wait,
            slots=slots,
            now=datetime.now(UTC),
        )
    if html_path is not None:
        _write(html_path, render(contents))
        echo(f"wrote {html_path}, {html_path.stat().st_size / 1e6:.1f} MB", err=as_json)
    if as_json:
        print_json(contents.document())


def _is_url(place: str) -> bool:
    scheme, colon, _ = place.partition("://")
    return bool(colon) and scheme.partition("+")[0] in {"postgresql", "postgres"}


def _check_installed() -> None:
    missing = [name for name in _NEEDS if find_spec(name) is None]
    if missing:
        raise MissingReportExtraError(f'{", ".join(missing)} not installed: pip install "sa-jobqueue[report]"')


def _check_there(place: str, url: URL | None, app: str | None) -> None:
    """Look whether there is something to read, before Spark is started for it.

    Raises: DatabaseUnavailableError, SchemaError; click.ClickException where there is no archive.
    """
    if url is not None:
        with Database(url, load_model(app)).session():
            pass
    elif "://" not in place and not (Path(place) / JOBS.name).is_dir():
        raise click.ClickException(f"there is no archive at {place}: it would have a folder {JOBS.name!r}")


@contextmanager
def _spoken() -> Iterator[None]:
    """Say an error of Spark in one line: of ours in a task what it says, else its first line."""
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        ours = [line for line in lines if line.startswith("sa_jobqueue.")]
        raise click.ClickException(f"Spark failed: {[*ours, *lines, type(error).__name__][0]}") from error


@contextmanager
def _session() -> Iterator[SparkSession]:
    """Give the process's Spark, or a small one that is stopped again. Raises: JavaNotFoundError."""
    from pyspark.sql import SparkSession

    from sa_jobqueue.spark import java_home

    present = SparkSession.getActiveSession()
    if present is not None:
        yield present
        return
    if "SPARK_REMOTE" not in os.environ:
        os.environ.setdefault("JAVA_HOME", str(java_home()))
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # and not whatever `python3` is on the path
    builder = SparkSession.builder.appName("sa-jobqueue report")
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(os.cpu_count() or 2),
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    try:
        yield session
    finally:
        session.stop()


@contextmanager
def _history(spark: SparkSession, places: Sequence[str], options: dict[str, str]) -> Iterator[History]:
    """Give one history of all places, the database's rows first."""
    from sa_jobqueue.spark.analytics import History

    with ExitStack() as stack:
        parts: list[Any] = []
        for place in sorted(places, key=lambda place: not _is_url(place)):
            if _is_url(place):
                live = History.live(spark, place, **options)
                # Before an archive's files are listed: what an archiver moves meanwhile is then in both, and not in neither.
                parts.append(stack.enter_context(live.cached()) if len(places) > 1 else live)
            else:
                parts.append(History.archive(spark, place))
        yield reduce(History.union, parts)


@contextmanager
def _progress() -> Iterator[Any]:
    """Show on standard error what goes on, where somebody looks."""
    terminal = console()
    terminal.stderr = True
    with Progress(
        SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), console=terminal, transient=True
    ) as progress:
        task = progress.add_task("")
        yield lambda text: progress.update(task, description=text)


def _write(path: Path, page: str) -> None:
    """Write the page whole or not at all."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(page, encoding="utf-8")
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise click.ClickException(f"cannot write {path}: {error.strerror}") from error

"""`sa-jobqueue report`: an HTML report of a queue's history, from a database, an archive or both."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from functools import reduce
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from sqlalchemy import URL

from sa_jobqueue.cli import _options as opts
from sa_jobqueue.cli._output import echo, is_json, print_json
from sa_jobqueue.db.urls import URL_VARIABLE, shown_url
from sa_jobqueue.display.progress import ProgressLines
from sa_jobqueue.errors import MissingExtraError
from sa_jobqueue.pipeline.cli._spark import spark_session
from sa_jobqueue.pipeline.history import JOBS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sa_jobqueue.pipeline.spark.analytics import History

_SETTINGS: Final = {
    # Most of a report's time is Java's start: the optimizing compiler would take more time than it saves.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.sql.shuffle.partitions": str(os.cpu_count() or 2),
}
_NEEDS: Final = ("pyspark", "pyarrow", "pandas", "jinja2")


@click.command()
@click.argument("sources", nargs=-1, metavar="[PATH|URL]...")
@click.option("--html", "html_path", type=click.Path(dir_okay=False, path_type=Path), help="Write the report to this file.")
@opts.json_option
@click.option("--since", type=opts.instant, metavar="TIME", help="Only jobs that ended at or after this time.")
@click.option("--until", type=opts.instant, metavar="TIME", help="Only jobs that ended before this time.")
@click.option("--queue", "queues", multiple=True, metavar="QUEUE", help="Only in this queue; may be repeated.")
@click.option("--type", "types", multiple=True, metavar="TYPE", help="Only of this job type; may be repeated.")
@click.option(
    "--target-wait",
    type=opts.duration,
    default="1s",
    show_default=True,
    metavar="DURATION",
    help="Target for the 95th percentile of waits.",
)
@click.option(
    "--slots", type=click.IntRange(min=1), metavar="N", help="Total concurrency of your workers, for the utilization."
)
@opts.app_option
def report(
    *,
    sources: tuple[str, ...],
    html_path: Path | None,
    app: str | None,
    since: datetime | None,
    until: datetime | None,
    queues: tuple[str, ...],
    types: tuple[str, ...],
    target_wait: timedelta,
    slots: int | None,
) -> None:
    """Create a report of a queue's history: throughput, waits, errors, dead letters, workflows, capacity.

    PATH is an archive, URL a database; both together are one history without duplicates. Without either, the database is
    that of SA_JOBQUEUE_URL. If the URL contains a password, use the variable: other users can see arguments.
    The report is one self-contained file, computed with a local Spark. Requires "sa-jobqueue[report]".

    \b
    Example:
      sa-jobqueue report /srv/archive --html report.html --since 2026-01-01
    """
    if html_path is None and not is_json():
        raise click.UsageError("no output: pass --html FILE, --json, or both")
    places = sources or tuple(filter(None, [os.environ.get(URL_VARIABLE)]))
    if not places:
        raise click.UsageError(f"no source: pass the PATH of an archive or the URL of a database, or set {URL_VARIABLE}")
    urls = [opts.parse_url(place) if _is_url(place) else None for place in places]
    if sum(url is not None for url in urls) > 1:
        raise click.UsageError("more than one database URL: create one report for each database")
    if since is not None and until is not None and since >= until:
        raise click.UsageError("--since must be before --until")
    if missing := next((name for name in _NEEDS if find_spec(name) is None), None):
        raise MissingExtraError(missing, "report")
    for place, url in zip(places, urls, strict=True):
        _check_source(place, url, app)
    from sa_jobqueue.pipeline.report import collect, render

    shown = tuple(
        place if url is None else shown_url(url.set(drivername="postgresql"))
        for place, url in zip(places, urls, strict=True)
    )
    with _spark_errors(), ProgressLines("report") as lines, ExitStack() as stack:
        lines.begin("starting Spark")
        spark = stack.enter_context(spark_session("report", _SETTINGS))
        lines.begin("reading")
        options = {"app": app} if app else {}
        history = stack.enter_context(_history(spark, places, options, since))
        lines.begin("computing")
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
        echo(f"wrote {html_path}, {html_path.stat().st_size / 1e6:.1f} MB", err=is_json())
    if is_json():
        print_json(contents.document())


def _is_url(place: str) -> bool:
    scheme, colon, _ = place.partition("://")
    return bool(colon) and scheme.partition("+")[0] in {"postgresql", "postgres"}


def _check_source(place: str, url: URL | None, app: str | None) -> None:
    """Check that a source exists before Spark is started.

    Raises: DatabaseUnavailableError, SchemaError; click.ClickException if there is no archive.
    """
    if url is not None:
        with opts.Database(url, opts.load_model(app)).session():
            pass
    elif "://" not in place and not (Path(place) / JOBS.name).is_dir():
        raise click.ClickException(f"no archive at {place}: it has no folder {JOBS.name!r}")


@contextmanager
def _spark_errors() -> Iterator[None]:
    """Report an error of Spark on one line: the library's own error if a task raised one, else the first line."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        ours = [line for line in lines if line.startswith("sa_jobqueue.")]
        java = [line.removeprefix(": ") for line in lines if line.startswith(": ")]
        raise click.ClickException(f"Spark failed: {[*ours, *java, *lines, type(error).__name__][0]}") from error


@contextmanager
def _history(
    spark: SparkSession, places: Sequence[str], options: dict[str, str], since: datetime | None
) -> Iterator[History]:
    """Yield one history of all sources, the database first."""
    from sa_jobqueue.pipeline.spark.analytics import History

    with ExitStack() as stack:
        parts: list[Any] = []
        for place in sorted(places, key=lambda place: not _is_url(place)):
            if _is_url(place):
                live = History.live(spark, place, **options)
                # Before an archive's files are listed: chains that are archived meanwhile are then in both, not in neither.
                parts.append(stack.enter_context(live.cached()) if len(places) > 1 else live)
            else:
                parts.append(History.archive(spark, place, since=since))
        yield reduce(History.union, parts)


def _write(path: Path, page: str) -> None:
    """Write the page atomically."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(page, encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise click.ClickException(f"cannot write {path}: {error.strerror}") from error

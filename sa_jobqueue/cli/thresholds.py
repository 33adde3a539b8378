"""`sa-jobqueue thresholds`: the thresholds of the health report that every program uses."""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter
from typing import Any, Final

import click

from sa_jobqueue.cli import _options as opts
from sa_jobqueue.cli import noun_group
from sa_jobqueue.cli._output import Columns, print_result, table_of
from sa_jobqueue.cli.health import threshold
from sa_jobqueue.observe.health import Thresholds, get_thresholds, set_thresholds
from sa_jobqueue.observe.health.thresholds import KINDS

thresholds: Final = noun_group("thresholds")


@thresholds.command("list")
@opts.reading
def list_(database: opts.Database, /) -> None:
    """List the thresholds: those of all queues, and those of single queues that differ."""
    _show(database.run(get_thresholds))


@thresholds.command("set")
@click.argument("given", metavar="NAME=VALUE...", nargs=-1, required=True)
@click.option("--queue", default="", metavar="QUEUE", help="Only for this queue.  [default: all others]")
@opts.by_option
@opts.reading
def set_(database: opts.Database, /, *, given: tuple[str, ...], queue: str, by: str) -> None:
    """Set thresholds. NAME= without a value returns to the default; a queue returns to the value of the others.

    \b
    Example:
      sa-jobqueue thresholds set retry_rate_warning=0.2 long_running=6h
      sa-jobqueue thresholds set --queue reports claim_age_warning=15m claim_age_critical=2h
    """
    values = dict((one[:-1], None) if one.endswith("=") else threshold(one) for one in given)
    _show(database.run(set_thresholds, values, queue=queue, by=by))


def _show(stored: Thresholds) -> None:
    rows = list(_rows(stored))
    document = {"thresholds": [dict(zip(("name", "queue", "value", "default"), row, strict=True)) for row in rows]}
    columns: Columns = {"threshold": itemgetter(0), "value": itemgetter(2), "default": itemgetter(3), "queue": itemgetter(1)}
    print_result(document, table_of("thresholds", columns, rows))


def _rows(stored: Thresholds) -> Iterator[tuple[str, str | None, Any, Any]]:
    for name in KINDS:
        yield name, None, getattr(stored, name), getattr(Thresholds(), name)
    for queue, of in stored.queues.items():
        for name in KINDS:
            if getattr(of, name) != getattr(stored, name):
                yield name, queue, getattr(of, name), getattr(stored, name)

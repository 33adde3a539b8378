"""`sa-jobqueue health`: findings, figures in tables, and an exit status for probes; `sa-jobqueue thresholds`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict
from datetime import timedelta
from itertools import count
from operator import itemgetter
from typing import Any, Final

import click
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from sa_jobqueue.cli import _options as opts
from sa_jobqueue.cli import noun_group
from sa_jobqueue.cli._output import (
    Columns,
    console,
    fields_of,
    first_line,
    is_json,
    print_json,
    print_result,
    shown,
    table_of,
)
from sa_jobqueue.display.printable import byte_size, span
from sa_jobqueue.observe.health import Health, Severity, Thresholds, get_thresholds, set_thresholds, silence_finding
from sa_jobqueue.observe.health import health as measure
from sa_jobqueue.observe.health.figures import Failures
from sa_jobqueue.observe.health.findings import described, with_message
from sa_jobqueue.observe.health.thresholds import KINDS, overridden
from sa_jobqueue.policies.fairness import QueueKey

_AGES: Final = {
    "under_1h": "under 1 h",
    "1h_to_1d": "under 1 d",
    "1d_to_7d": "under 7 d",
    "7d_to_30d": "under 30 d",
    "over_30d": "older",
}
_STYLES: Final = {Severity.OK: "green", Severity.WARNING: "yellow", Severity.CRITICAL: "bold red"}


def threshold(text: Any) -> tuple[str, Any]:
    """Parse NAME=VALUE of a threshold; durations are in seconds. Raises: click.BadParameter."""
    name, equals, value = str(text).partition("=")
    if name not in KINDS:
        raise click.BadParameter(f"unknown threshold {name!r}: must be one of {', '.join(KINDS)}")
    if not equals:
        raise click.BadParameter(f"{text!r} must be NAME=VALUE, such as claim_age_warning=30s or saturation=0.9")
    try:
        return name, opts.duration(value) if KINDS[name] is timedelta else KINDS[name](value)
    except ValueError:
        raise click.BadParameter(f"{name}: {value!r} is not a number") from None
    except click.BadParameter as error:
        raise click.BadParameter(f"{name}: {error.message}") from None


@click.command()
@opts.json_option
@click.option("--watch", is_flag=True, help="Repeat until Ctrl-C.")
@opts.duration_option("--interval", "Interval of --watch.", default=timedelta(seconds=5))
@opts.window_option
@opts.heartbeat_timeout_option
@opts.duration_option("--timeout", "Timeout of one statement.", type=opts.period, default=timedelta(seconds=10))
@click.option(
    "--threshold",
    "overrides",
    type=threshold,
    multiple=True,
    metavar="NAME=VALUE",
    help="Override a stored threshold of the findings, such as claim_age_warning=30s; may be repeated.",
)
@click.option("--times", type=int, hidden=True)
@opts.with_database
def health(
    database: opts.Database, /, *, watch: bool, interval: timedelta, overrides: tuple[tuple[str, Any], ...],
    times: int | None, **options: Any,
) -> None:  # fmt: skip
    """Report problems of the queue and what to do about them, what holds back the xmin horizon, and all figures.

    Figures that take longer than --timeout are left out and named: a warning.
    Exit status: 0 ok, 1 warning, 2 critical, 3 unknown (could not measure).
    """
    engine, thresholds = database.engine(), None
    if overrides:
        thresholds = overridden(database.run(get_thresholds), dict(overrides))

    def read() -> Health:
        return measure(engine, thresholds=thresholds, model=database.model, **options)

    live = Live(console=console(), auto_refresh=False) if watch and not is_json() else None
    with live or nullcontext():
        for last in _watched(read, interval, times if watch else 1):
            if live is not None:
                live.update(rendered(last), refresh=True)
            elif watch:
                print_json(document(last), indent=None)
            else:
                print_result(document(last), rendered(last))
    raise click.exceptions.Exit(last.severity)


def _watched(read: Callable[[], Health], interval: timedelta, times: int | None) -> Iterator[Health]:
    """Yield reports until Ctrl-C; the last one determines the exit status."""
    yield read()
    try:
        for _ in count() if times is None else range(times - 1):
            time.sleep(interval.total_seconds())
            yield read()
    except KeyboardInterrupt:
        return


def document(report: Health) -> dict[str, Any]:
    """Return a report as a JSON document: its figures, and those that follow from them."""
    document = asdict(report)
    document["findings"] = [
        asdict(finding) | {"severity": str(finding.severity), "summary": finding.summary} for finding in report.findings
    ]
    derived = {
        "rates": ("arrived", "completed", "retry_rate"),
        "workers": ("slots", "saturation"),
        "failures": ("by_age",),
        "horizon": ("age", "held_for"),
    }
    for part, names in derived.items():
        document[part] |= {name: getattr(getattr(report, part), name) for name in names}
    document["workers"]["live"] = len(report.workers.live)
    return {"severity": str(report.severity), "due": report.due, "claim_age": report.claim_age} | document


def rendered(report: Health) -> RenderableType:
    """Return a report for people, problems first."""
    at = shown(report.measured_at)
    parts: list[RenderableType] = [Text(f"{str(report.severity).upper()}  {at}", style=_STYLES[report.severity])]
    for finding in report.findings:
        line = Text(f"{finding.severity!s:8} ", style=_STYLES[finding.severity])
        full = with_message(finding, lambda type_name, error: first_line(error, type_name))
        line.append(f"{finding.code}: {shown(full.summary)}", style="not bold default")
        parts += [line, Text(f"         {shown(finding.advice)}", style="dim")]
    parts += [_summary(report), _queues(report), _tables(report)]
    if report.horizon.holders:
        parts.append(_holders(report))
    return Group(*parts)


def _summary(report: Health) -> RenderableType:
    rates, running, dead, bulk = report.rates, report.running, report.failures, report.bulk_writes
    at_least = "at least " if rates.is_partial else ""
    arriving, completing = rates.per_second(rates.arrived), rates.per_second(rates.completed)
    pending = report.statuses.get("pending")
    estimate = f"; about {pending:,} pending at the last analyze" if pending else ""
    more = f" or more{estimate}" if any(queue.is_capped for queue in report.queues) else ""
    longest = "".join(f", the longest {job.type_name} for {span(job.running_for)}" for job in running.longest[:1])
    oldest = f", the oldest for {span(bulk.oldest_for)}" if bulk.oldest_for is not None else ""
    held_for = f", {span(report.horizon.held_for)}" if report.horizon.held_for else ""
    by_part = {
        "queues": {"depth": f"{report.due:,} due{more}", "claim age": span(report.claim_age)},
        "rates": {
            "rates": f"{at_least}{arriving:,.1f}/s arriving, {completing:,.1f}/s completing ({span(rates.window)})",
            "retry rate": f"{rates.retry_rate:.1%} of attempts",
        },
        "workers": {
            "workers": f"{len(report.workers.live)} live, {len(report.workers.silent)} silent; "
            f"{report.workers.saturation:.0%} of {report.workers.slots} slots used"
        },
        "running": {"running": f"{running.running:,}{longest}"},
        "failures": {
            "dead letters": f"{dead.unresolved:,}{' or more' if dead.is_capped else ''} unresolved" + _ages(dead),
            "blocked by dead chains": f"{dead.waiting:,} jobs",
        },
        "bulk_writes": {
            "bulk writes": f"{bulk.unfinished:,} unfinished{oldest}; {bulk.rejected:,} rejected rows, "
            f"{bulk.rejected_last_day:,} of the last day"
        },
        "horizon": {"horizon": f"{report.horizon.age:,} transactions{held_for}"},
    }
    fields: dict[str, Any] = {}
    for part, rows in by_part.items():
        fields |= dict.fromkeys(rows, "not measured") if part in report.missing else rows
    return fields_of("queue", fields)


def _ages(dead: Failures) -> str:
    if dead.oldest_for is None:
        return ""
    ages = ", ".join(f"{count:,} {_AGES[name]}" for name, count in dead.by_age.items() if count)
    return f": {ages}; the oldest {span(dead.oldest_for)} old"


_QUEUES: Final = 20
"""Maximum number of queues in the table."""


def _queues(report: Health) -> RenderableType:
    rates = {queue.queue: queue for queue in report.rates.queues}
    depths = {QueueKey(queue.queue, queue.fairness_key).label: queue for queue in report.queues}
    none, nothing = ("-" if part in report.missing else "0" for part in ("queues", "rates"))
    waiting = {name: (depth.claim_age, depth.due) for name, depth in depths.items()}
    names = sorted({*depths, *rates}, key=lambda name: (*(-n for n in waiting.get(name, (timedelta(0), 0))), name))
    left_out = f"; {len(names) - _QUEUES:,} more with --json" if len(names) > _QUEUES else ""
    rows = []
    for name in names[:_QUEUES]:
        depth, rate = depths.get(name), rates.get(name)
        more = "+" if depth and depth.is_capped else ""
        waits = [f"{depth.due:,}{more}", span(depth.claim_age), f"{depth.later:,}{more}"] if depth else [none, "-", none]
        happened = [f"{n:,}" for n in (rate.arrived, rate.completed, rate.died)] if rate else [nothing] * 3
        rows.append([name, *waits, *happened])
    headings = ["queue", "due", "claim age", "later", "arrived", "done", "died"]
    return table_of(f"queues, the longest wait first{left_out}", headings, rows)


def _tables(report: Health) -> RenderableType:
    rows = []
    for table in report.tables:
        sizes = ["-" if size is None else byte_size(size) for size in (table.bytes, table.index_bytes, table.wasted_bytes)]
        vacuum = f"now: {table.vacuuming}" if table.vacuuming else table.last_vacuum
        rows.append([table.name, f"{table.live:,}", f"{table.dead:,}", f"{table.vacuum_at:,.0f}", *sizes, vacuum])
    return table_of("tables", ["table", "rows", "dead", "vacuum at", "size", "indexes", "waste", "last vacuum"], rows)


def _holders(report: Health) -> RenderableType:
    rows = [
        [described(holder), f"{holder.age:,}", "-" if holder.held_for is None else span(holder.held_for), holder.query]
        for holder in report.horizon.holders
    ]
    return table_of("xmin horizon held back by", ["holder", "transactions", "for", "query"], rows)


thresholds: Final = noun_group("thresholds")


@thresholds.command("list")
@opts.reading
def list_(database: opts.Database, /) -> None:
    """List the thresholds: those of all queues, and those of single queues that differ."""
    _show(database.run(get_thresholds))


@thresholds.command("set")
@click.argument("pairs", metavar="NAME=VALUE...", nargs=-1, required=True)
@click.option("--queue", default="", metavar="QUEUE", help="Only for this queue.  [default: all others]")
@opts.by_option
@opts.reading
def set_(database: opts.Database, /, *, pairs: tuple[str, ...], queue: str, by: str) -> None:
    """Set thresholds. NAME= without a value returns to the default; a queue returns to the value of the others.

    \b
    Example:
      sa-jobqueue thresholds set retry_rate_warning=0.2 long_running=6h
      sa-jobqueue thresholds set --queue reports claim_age_warning=15m claim_age_critical=2h
    """
    values = dict((pair[:-1], None) if pair.endswith("=") else threshold(pair) for pair in pairs)
    _show(database.run(set_thresholds, values, queue=queue, by=by))


@thresholds.command()
@click.argument("code")
@opts.duration_option("--for", "How long, at most 30d; 0s ends the silence.", required=True)
@click.option("--reason", required=True, metavar="TEXT", help="Why; reports show it.")
@click.option(
    "--subject",
    default="",
    metavar="NAME",
    help="Only findings about this queue, job type, schedule or worker.  [default: all]",
)
@opts.name_option
@opts.reading
def silence(database: opts.Database, /, *, code: str, subject: str, reason: str, by: str, **options: timedelta) -> None:
    """Silence the finding CODE for a while: reports show it as ok, with who did it, until when and why.

    \b
    Example:
      sa-jobqueue thresholds silence claim_age --subject reports --for 4h --reason "nightly import"
    """
    words = {"by": by, "reason": reason, "subject": subject}
    until = database.run(silence_finding, code, duration=options["for"], **words)
    document = {"code": code, "subject": subject, "until": until, "reason": reason}
    print_result(document, f"{code}: silenced until {shown(until)}" if options["for"] else f"{code}: not silenced")


def _show(stored: Thresholds) -> None:
    rows = list(_rows(stored))
    document = {"thresholds": [dict(zip(("name", "queue", "value", "default"), row, strict=True)) for row in rows]}
    columns: Columns = {"threshold": itemgetter(0), "value": itemgetter(2), "default": itemgetter(3), "queue": itemgetter(1)}
    print_result(document, table_of("thresholds", columns, rows))


def _rows(stored: Thresholds) -> Iterator[tuple[str, str | None, Any, Any]]:
    for name in KINDS:
        yield name, None, getattr(stored, name), getattr(Thresholds(), name)
    for queue, queue_thresholds in stored.queues.items():
        for name in KINDS:
            if getattr(queue_thresholds, name) != getattr(stored, name):
                yield name, queue, getattr(queue_thresholds, name), getattr(stored, name)

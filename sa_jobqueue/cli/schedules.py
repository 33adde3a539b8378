"""`sa-jobqueue schedules`: list, pause, resume, run and synchronize schedules."""

from __future__ import annotations

from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo

import click
from sqlalchemy import func, select

from sa_jobqueue import operations
from sa_jobqueue.cli import _options as opts
from sa_jobqueue.cli import noun_group
from sa_jobqueue.cli._output import counted, fields_of, print_result, shown, table_of
from sa_jobqueue.cli._rows import NamedRows

schedules: Final = noun_group("schedules")


def _state(schedule: operations.ScheduleStatus) -> str:
    if schedule.error is not None:
        return f"cannot fire: {schedule.error}"
    if schedule.paused_at is not None:
        return "paused" if schedule.paused_by is None else f"paused by {schedule.paused_by}"
    return "on" if schedule.overdue is None else f"overdue for {shown(schedule.overdue)}"


_rows: Final = NamedRows(schedules, "schedule")
_rows.add_list(
    "schedules",
    operations.list_schedules,
    {
        "schedule": "name",
        "cron": "cron",
        "time zone": "time_zone",
        "job type": "type_name",
        "state": _state,
        "next": "next_fire_at",
        "last": "last_fire_at",
        "source": "source",
    },
    "List schedules by name, with their next and last times.",
)
_rows.add_show(operations.get_schedule, "Show the settings and the state of one schedule.")
_rows.add_change(
    "pause", operations.pause_schedules, "Pause schedules until they are resumed. Jobs that are already enqueued still run."
)
_rows.add_change(
    "resume", operations.resume_schedules, "Resume paused schedules. They fire next at their first time from now."
)
_rows.add_change(
    "delete", operations.delete_schedules, "Delete schedules that the application no longer declares. Their jobs are kept."
)


@schedules.command()
@click.argument("name")
@opts.explain_timeout_option
@opts.reading
def explain(database: opts.Database, /, *, name: str, timeout: timedelta) -> None:
    """Explain why a schedule does not fire or when it fires next, with its last runs."""
    explanation = replace(database, timeout=timeout).run(operations.explain_schedule, name, timeout=timeout)
    print_result(
        asdict(explanation), explanation.sentence, fields_of(f"schedule {name} ({explanation.cause})", explanation.evidence)
    )


@schedules.command("next")
@click.argument("name")
@opts.number_option("--count", "Number of times to list.", least=1, most=1000, default=10)
@click.option(
    "--after", type=opts.instant, metavar="TIME", help="Start of the list.  [default: now, by the database's clock]"
)
@opts.reading
def next_(database: opts.Database, /, *, name: str, count: int, after: datetime | None) -> None:
    """List the next times of a schedule, in its time zone and in UTC. A pause is ignored."""
    with database.session() as session:
        schedule = operations.get_schedule(session, name, model=database.model)
        times = schedule.next_times(count, after=after or session.execute(select(func.now())).scalar_one())
    zone = ZoneInfo(schedule.time_zone)
    rows = [(time.astimezone(zone).strftime("%a %Y-%m-%d %H:%M %Z"), time.astimezone(UTC)) for time in times]
    title = f"schedule {name}: {schedule.cron}, {schedule.in_words}"
    print_result({"schedule": name, "times": times}, table_of(title, (schedule.time_zone, "UTC"), rows))


@schedules.command()
@click.argument("name")
@click.option(
    "--since",
    type=opts.instant,
    metavar="TIME",
    help="Start of a period: run its times that have not fired yet. Needs --until.",
)
@click.option("--until", type=opts.instant, metavar="TIME", help="End of the period; both ends are included.")
@opts.changing
def run(database: opts.Database, /, *, name: str, dry_run: bool, by: str, **period: datetime | None) -> None:
    """Enqueue a schedule's job now, or the jobs of a past period. The next regular time does not change.

    \b
    Example:
      sa-jobqueue schedules run sales-nightly --since 2026-03-01 --until 2026-03-31
    """
    result = database.run(operations.run_schedule, name, **period, by=by, dry_run=dry_run)
    count = counted(len(result), "job")
    if dry_run:
        print_result({"jobs": len(result), "dry_run": True}, f"{count} would be enqueued")
    else:
        print_result({"jobs": result}, f"{count} enqueued", *map(str, result))


_rows.add_sync(
    lambda session, jobs, by: operations.sync_schedules(session, jobs.schedules, by=by, model=jobs.model),
    """Synchronize schedules with the application's JobQueue, as workers do when they start.

    Pauses are kept. Schedules that the JobQueue does not declare are listed and not changed.
    """,
)

"""`sa-jobqueue schedules`: what is enqueued again and again, when next, and running one out of its turn."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, Final
from zoneinfo import ZoneInfo

import click
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from sa_jobqueue.cli._options import (
    Database,
    instant,
    json_option,
    load_jobs,
    parse_url,
    url_option,
    user_name,
    with_database,
)
from sa_jobqueue.cli._output import counted, echo, print_fields, print_json, print_table, shown
from sa_jobqueue.errors import ScheduleNotFoundError
from sa_jobqueue.operations import (
    ScheduleStatus,
    delete_schedules,
    explain_schedule,
    list_schedules,
    pause_schedules,
    resume_schedules,
    run_schedule,
    sync_schedules,
)

_names: Final = click.argument("names", metavar="NAME...", nargs=-1, required=True)
_HEADINGS: Final = ("schedule", "cron", "time zone", "job type", "state", "next", "last", "from")


@click.group()
def schedules() -> None:
    """List schedules, pause, resume and run them, and make their rows say what code declares."""


@schedules.command("list")
@json_option
@with_database
def list_(database: Database, /, *, as_json: bool) -> None:
    """List schedules by name, with the times when they fire next and last fired."""
    with database.session() as session:
        found = list_schedules(session, model=database.model)
    if as_json:
        print_json({"schedules": [asdict(one) for one in found]})
        return
    rows = [
        (one.name, one.cron, one.time_zone, one.type_name, _state(one), one.next_fire_at, one.last_fire_at, one.source)
        for one in found
    ]
    print_table(counted(len(found), "schedule"), _HEADINGS, rows)


def _state(one: ScheduleStatus) -> str:
    if one.error is not None:
        return f"cannot fire: {one.error}"
    if one.paused_at is not None:
        return "paused" if one.paused_by is None else f"paused by {one.paused_by}"
    return "on" if one.overdue is None else f"overdue for {shown(one.overdue)}"


@schedules.command()
@click.argument("name")
@json_option
@with_database
def show(database: Database, /, *, name: str, as_json: bool) -> None:
    """Show all that is said of one schedule, and where it stands."""
    with database.session() as session:
        told = asdict(_found(session, database, name))
    print_json(told) if as_json else print_fields(f"schedule {name}", told)


@schedules.command()
@click.argument("name")
@json_option
@with_database
def explain(database: Database, /, *, name: str, as_json: bool) -> None:
    """Say why a schedule does not fire, or when it does, and what became of its last times."""
    with database.session() as session:
        told = explain_schedule(session, name, model=database.model)
    if as_json:
        print_json(asdict(told))
        return
    echo(told.sentence)
    print_fields(f"schedule {name} ({told.cause})", told.evidence)


def _found(session: Session, database: Database, name: str) -> ScheduleStatus:
    found = list_schedules(session, names=[name], model=database.model)
    if not found:
        raise ScheduleNotFoundError([name], reason="")
    return found[0]


@schedules.command("next")
@click.argument("name")
@click.option("--count", type=click.IntRange(1, 1000), default=10, show_default=True, help="How many times.")
@click.option("--after", type=instant, metavar="TIME", help="From when on; now, by the database's clock, unless given.")
@json_option
@with_database
def next_(database: Database, /, *, name: str, count: int, after: datetime | None, as_json: bool) -> None:
    """List the times that a schedule fires next, on its own clocks and in UTC, whether or not it is paused."""
    with database.session() as session:
        one = _found(session, database, name)
        times = one.next_times(count, after=after or session.execute(select(func.now())).scalar_one())
    if as_json:
        print_json({"schedule": name, "times": times})
        return
    zone = ZoneInfo(one.time_zone)
    rows = [(time.astimezone(zone).strftime("%a %Y-%m-%d %H:%M %Z"), time.astimezone(UTC)) for time in times]
    print_table(f"schedule {name}: {one.cron}", (one.time_zone, "UTC"), rows)


@schedules.command()
@_names
@click.option("--by", default=user_name, show_default="your name", help="Who says so, for those who look.")
@json_option
@with_database
def pause(database: Database, /, *, names: tuple[str, ...], by: str, as_json: bool) -> None:
    """Let schedules fire no more until they are resumed. Jobs that are enqueued already are run."""
    with database.session() as session:
        pause_schedules(session, names, by=by, model=database.model)
        session.commit()
    print_json({"paused": names}) if as_json else echo(f"{counted(len(names), 'schedule')} paused")


@schedules.command()
@_names
@json_option
@with_database
def resume(database: Database, /, *, names: tuple[str, ...], as_json: bool) -> None:
    """Let paused schedules fire again, first at their next time from now."""
    with database.session() as session:
        resume_schedules(session, names, model=database.model)
        session.commit()
    print_json({"resumed": names}) if as_json else echo(f"{counted(len(names), 'schedule')} resumed")


@schedules.command()
@click.argument("name")
@click.option("--since", type=instant, metavar="TIME", help="With --until: its times between them that were not fired.")
@click.option("--until", type=instant, metavar="TIME", help="Included, as --since is.")
@json_option
@with_database
def run(database: Database, /, *, name: str, since: datetime | None, until: datetime | None, as_json: bool) -> None:
    """Enqueue a schedule's job now, or those of a span of time. When it fires next stays as it was."""
    with database.session() as session:
        made = run_schedule(session, name, since=since, until=until, model=database.model)
        session.commit()
    if as_json:
        print_json({"jobs": made})
        return
    echo(f"{counted(len(made), 'job')} enqueued")
    for job_id in made:
        echo(str(job_id))


@schedules.command()
@_names
@json_option
@with_database
def delete(database: Database, /, *, names: tuple[str, ...], as_json: bool) -> None:
    """Delete schedules that nobody declares any more. The jobs they made stay."""
    with database.session() as session:
        delete_schedules(session, names, model=database.model)
        session.commit()
    print_json({"deleted": names}) if as_json else echo(f"{counted(len(names), 'schedule')} deleted")


@schedules.command()
@click.argument("application", metavar="MODULE:ATTRIBUTE")
@click.option("--dry-run", is_flag=True, help="Only tell the difference.")
@json_option
@url_option
def sync(application: str, url: str | None, *, dry_run: bool, as_json: bool) -> None:
    """Make the rows of schedules say what the application's JobQueue declares, as its workers do when they start.

    What is paused stays so. Those that no code declares here are named, and left as they are.
    """
    jobs = load_jobs(application)
    with Database(parse_url(url), jobs.model).session() as session:
        synced = sync_schedules(session, jobs.schedules, model=jobs.model)
        session.rollback() if dry_run else session.commit()
    told: dict[str, Any] = asdict(synced)
    if as_json:
        print_json(told)
        return
    for what in ("created", "changed", "unchanged"):
        echo(f"{'would be ' if dry_run and what != 'unchanged' else ''}{what}: {', '.join(told[what]) or 'none'}")
    for name, type_name in synced.undeclared.items():
        echo(f"not declared here, and left as it is: {name} (jobs of type {type_name})", err=True)

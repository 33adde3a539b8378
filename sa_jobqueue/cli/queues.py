"""`sa-jobqueue queues`: what queues are told, pausing them, and making their rows say what code declares."""

from __future__ import annotations

from dataclasses import asdict, replace
from datetime import timedelta
from typing import Any, Final

import click

from sa_jobqueue.cli._limits import ALGORITHM, BURST, GLOBAL_CONCURRENCY, PERIOD, RATE, limits_told, named, read_limits
from sa_jobqueue.cli._options import (
    Database,
    json_option,
    load_jobs,
    parse_url,
    seconds,
    url_option,
    user_name,
    with_database,
)
from sa_jobqueue.cli._output import counted, echo, print_fields, print_json, print_table, shown
from sa_jobqueue.operations import (
    QueueStatus,
    get_queue,
    list_queues,
    pause_queues,
    resume_queues,
    sync_queues,
    upsert_queue,
)
from sa_jobqueue.policies.retention import Retention
from sa_jobqueue.policies.retry import Backoff
from sa_jobqueue.registry.settings import LIMITS, RETRY, QueueSettings, retry_of

_names: Final = click.argument("names", metavar="NAME...", nargs=-1, required=True)
_HEADINGS: Final = ("queue", "paused", "by", "weight", "max running", "of a key", "rate", "workers")


@click.group()
def queues() -> None:
    """Look at queues, pause and resume them, and say what they may take."""


@queues.command("list")
@json_option
@with_database
def list_(database: Database, /, *, as_json: bool) -> None:
    """List queues that somebody said something of, or that a worker serves."""
    with database.session() as session:
        found = list_queues(session, model=database.model)
    if as_json:
        print_json({"queues": [asdict(queue) for queue in found]})
        return
    rows = [_row(one) for one in found]
    print_table(counted(len(found), "queue"), _HEADINGS, rows)


def _row(one: QueueStatus) -> tuple[Any, ...]:
    limits = (one.global_concurrency, one.concurrency_per_key, limits_told(one))
    return (one.name, one.paused_at, one.paused_by, one.weight, *limits, one.workers)


@queues.command()
@click.argument("name")
@json_option
@with_database
def show(database: Database, /, *, name: str, as_json: bool) -> None:
    """Show all that is said of one queue."""
    with database.session() as session:
        found = list_queues(session, names=[name], model=database.model)
    if not found:
        raise click.ClickException(f"nobody said anything of queue {name!r}, and no worker serves it")
    told = asdict(found[0])
    print_json(told) if as_json else print_fields(f"queue {name}", told)


@queues.command("set")
@click.argument("name")
@click.option("--weight", type=int, help="Its share beside the other queues, 1 to 100.")
@click.option("--concurrency-per-key", metavar="N", help="How many of each fair key may run at once, across all workers.")
@GLOBAL_CONCURRENCY
@RATE
@PERIOD
@BURST
@ALGORITHM
@click.option("--retry-base", metavar="SECONDS", help="Longest first wait of jobs whose handlers say none, or 'none'.")
@click.option("--retry-factor", metavar="N", help="How much longer each of their waits may be than the one before.")
@click.option("--retry-cap", metavar="SECONDS", help="The longest of their waits.")
@click.option("--retain-completed", metavar="DAYS", help="How long its completed chains are kept; 'none' to say nothing.")
@click.option("--retain-cancelled", metavar="DAYS", help="The same of cancelled ones.")
@click.option("--retain-dead", metavar="DAYS", help="The same of dead ones.")
@json_option
@with_database
def set_(database: Database, /, *, name: str, weight: int | None, as_json: bool, **given: str | None) -> None:
    """Say what a queue may take. What is not given stays as it is; 'none' takes a limit away."""
    with database.session() as session:
        said = _settings(get_queue(session, name, model=database.model))
        ages = {outcome: given.pop(f"retain_{outcome}") for outcome in ("completed", "cancelled", "dead")}
        kept = {outcome: _days(f"retain_{outcome}", days) for outcome, days in ages.items() if days is not None}
        retry = _retry(said.retry, *map(given.pop, RETRY))
        wanted: dict[str, Any] = read_limits(said, given) | {"retry": retry, "retention": replace(said.retention, **kept)}
        if weight is not None:
            wanted["weight"] = weight
        upsert_queue(session, replace(said, **wanted), model=database.model)
        session.commit()
        told = asdict(list_queues(session, names=[name], model=database.model)[0])
    print_json(told) if as_json else print_fields(f"queue {name}", told)


@queues.command()
@_names
@click.option("--by", default=user_name, show_default="your name", help="Who says so, for those who look.")
@json_option
@with_database
def pause(database: Database, /, *, names: tuple[str, ...], by: str, as_json: bool) -> None:
    """Have no job of these queues started until they are resumed. What runs goes on, what is enqueued waits."""
    with database.session() as session:
        done = pause_queues(session, names, by=by, model=database.model)
        session.commit()
    print_json({"paused": done}) if as_json else echo(f"{counted(len(done), 'queue')} paused")


@queues.command()
@_names
@json_option
@with_database
def resume(database: Database, /, *, names: tuple[str, ...], as_json: bool) -> None:
    """Have the jobs of paused queues started again, whatever came meanwhile."""
    with database.session() as session:
        done = resume_queues(session, names, model=database.model)
        session.commit()
    print_json({"resumed": done}) if as_json else echo(f"{counted(len(done), 'queue')} resumed")


@queues.command()
@click.argument("application", metavar="MODULE:ATTRIBUTE")
@click.option("--dry-run", is_flag=True, help="Only tell the difference.")
@json_option
@url_option
def sync(application: str, url: str | None, *, dry_run: bool, as_json: bool) -> None:
    """Make the rows of queues say what the application's JobQueue declares. What is paused stays so; nothing is deleted."""
    jobs = load_jobs(application)
    with Database(parse_url(url), jobs.model).session() as session:
        synced = sync_queues(session, jobs.declared_queues, model=jobs.model)
        session.rollback() if dry_run else session.commit()
    if as_json:
        changed = {name: {key: list(pair) for key, pair in what.items()} for name, what in synced.changed.items()}
        print_json(asdict(replace(synced, changed={})) | {"changed": changed, "dry_run": dry_run})
        return
    would = "would be " if dry_run else ""
    for name in synced.created:
        echo(f"{name}: {would}created")
    for name, what in synced.changed.items():
        told = ", ".join(f"{key} {shown(old)} -> {shown(new)}" for key, (old, new) in what.items())
        echo(f"{name}: {would}changed: {told}")
    for name in synced.undeclared:
        echo(f"{name}: not declared, left as it is")
    echo(f"{counted(len(synced.unchanged), 'queue')} said so already")


def _settings(said: QueueStatus) -> QueueSettings:
    limits = {key: getattr(said, key) for key in ("weight", "concurrency_per_key", *LIMITS)}
    kept = Retention(completed=said.retain_completed, cancelled=said.retain_cancelled, dead=said.retain_dead)
    return QueueSettings(name=said.name, retry=retry_of(said), retention=kept, **limits)


def _retry(said: Backoff | None, base: str | None, factor: str | None, cap: str | None) -> Backoff | None:
    """Return the backoff: what is given, `none` for none, and what was said before."""
    if base == "none":
        return None
    told: dict[str, Any] = {}
    for name, given in (("base", base), ("cap", cap)):
        if given is not None:
            with named(f"retry_{name}"):
                told[name] = seconds(given)
    if factor is not None:
        with named("retry_factor"):
            try:
                told["factor"] = float(factor)
            except ValueError:
                raise click.BadParameter(f"{factor!r} is not a number") from None
    return replace(said or Backoff(), **told) if told else said


def _days(option: str, given: str) -> timedelta | None:
    if given == "none":
        return None
    with named(option):
        try:
            return timedelta(days=float(given))
        except (ValueError, OverflowError):
            raise click.BadParameter(f"{given!r} is not a number of days, nor none") from None

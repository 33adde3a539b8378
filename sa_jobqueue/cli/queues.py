"""`sa-jobqueue queues`: list, pause and resume queues, change and synchronize their settings."""

from __future__ import annotations

from dataclasses import asdict, replace
from datetime import timedelta
from typing import Any, Final

import click

from sa_jobqueue.cli._limits import rate_text, read_settings, setting_options
from sa_jobqueue.cli._options import (
    Database,
    application_argument,
    by_option,
    dry_run_option,
    duration,
    json_option,
    load_jobs,
    parse_url,
    url_option,
    with_database,
)
from sa_jobqueue.cli._output import counted, echo, print_changed, print_fields, print_json, print_table, shown
from sa_jobqueue.observe.shares import Share, shares
from sa_jobqueue.operations import (
    QueueStatus,
    get_queue,
    list_queues,
    pause_queues,
    record_job_types,
    resume_queues,
    sync_queues,
    upsert_queue,
)
from sa_jobqueue.operations.pages import every_item
from sa_jobqueue.policies.fairness import label_of, queue_key_of
from sa_jobqueue.registry.settings import QueueColumns

_fairness_key: Final = click.option(
    "--fairness-key", default="", metavar="KEY", help="Only this fairness key of the queue.  [default: the queue]"
)
_names: Final = click.argument("names", metavar="NAME...", nargs=-1, required=True)
_HEADINGS: Final = ("queue", "fairness key", "paused", "by", "weight", "concurrency", "per key", "rate", "workers")


@click.group()
def queues() -> None:
    """List, pause and resume queues, and set their limits."""


@queues.command("list")
@json_option
@with_database
def list_(database: Database, /, *, as_json: bool) -> None:
    """List queues that have settings or an active worker."""
    with database.session() as session:
        found = list(every_item(lambda after: list_queues(session, after=after, model=database.model)))
    if as_json:
        print_json({"queues": [asdict(queue) for queue in found]})
        return
    rows = [_row(one) for one in found]
    print_table(counted(len(found), "queue"), _HEADINGS, rows)


def _row(one: QueueStatus) -> tuple[Any, ...]:
    limits = (one.global_concurrency, one.concurrency_per_key, rate_text(one))
    return (one.name, one.fairness_key or None, one.paused_at, one.paused_by, one.weight, *limits, one.workers)


@queues.command("shares")
@click.option(
    "--window",
    type=duration,
    metavar="DURATION",
    default="1m",
    show_default=True,
    help="Period whose started jobs are counted.",
)
@json_option
@with_database
def shares_(database: Database, /, *, window: timedelta, as_json: bool) -> None:
    """Compare the share of started jobs of each queue and fairness key with its weight, most underserved first."""
    with database.session() as session:
        found = shares(session, window=window, model=database.model)
    if as_json:
        print_json(
            {"window": found.window, "is_partial": found.is_partial}
            | {
                kind: [asdict(one) | {"is_starving": one.is_starving} for one in of]
                for kind, of in (("queues", found.queues), ("keys", found.keys))
            }
        )
        return
    headings = ("queue", "fairness key", "weight", "started", "received", "due share", "oldest due for", "")
    rows = [_share(one, "all") for one in found.queues] + [_share(one, "none") for one in found.keys]
    print_table(f"jobs started within {shown(window)}{', at least' if found.is_partial else ''}", headings, rows)


def _share(one: Share, without_key: str) -> tuple[Any, ...]:
    due_share = None if one.due_share is None else f"{one.due_share:.0%}"
    state = "less than half" if one.is_starving else None
    key = one.fairness_key or without_key
    return (one.queue, key, one.weight, one.started, f"{one.received:.0%}", due_share, one.waiting_for, state)


@queues.command()
@click.argument("name")
@_fairness_key
@json_option
@with_database
def show(database: Database, /, *, name: str, fairness_key: str, as_json: bool) -> None:
    """Show the settings of one queue."""
    with database.session() as session:
        document = asdict(get_queue(session, name, fairness_key=fairness_key, model=database.model))
    print_json(document) if as_json else print_fields(f"queue {label_of(queue_key_of(name, fairness_key))}", document)


@queues.command("set")
@click.argument("name")
@_fairness_key
@setting_options(QueueColumns)
@by_option
@json_option
@with_database
def set_(database: Database, /, *, name: str, fairness_key: str, by: str, as_json: bool, **given: str | None) -> None:
    """Change the settings of a queue. Options that are not given keep their value.

    \b
    Example:
      sa-jobqueue queues set mail --global-concurrency 10 --rate-limit 100 --rate-period 1m
    """
    with database.session() as session:
        locked = get_queue(session, name, fairness_key=fairness_key, for_update=True, model=database.model)
        changed: QueueStatus = replace(locked, **read_settings(QueueColumns, given))
        upsert_queue(session, changed.settings, by=by, model=database.model)
        session.commit()
        document = asdict(get_queue(session, name, fairness_key=fairness_key, model=database.model))
    print_json(document) if as_json else print_fields(f"queue {label_of(queue_key_of(name, fairness_key))}", document)


@queues.command()
@_names
@_fairness_key
@dry_run_option
@by_option
@json_option
@with_database
def pause(
    database: Database, /, *, names: tuple[str, ...], fairness_key: str, dry_run: bool, by: str, as_json: bool
) -> None:
    """Pause queues: start none of their jobs until they are resumed. Running jobs continue."""
    with database.session() as session:
        done = pause_queues(session, names, fairness_key=fairness_key, by=by, dry_run=dry_run, model=database.model)
        session.commit()
    print_changed("queue", done.ids, "paused", dry_run=dry_run, as_json=as_json)


@queues.command()
@_names
@_fairness_key
@dry_run_option
@by_option
@json_option
@with_database
def resume(
    database: Database, /, *, names: tuple[str, ...], fairness_key: str, dry_run: bool, by: str, as_json: bool
) -> None:
    """Resume paused queues."""
    with database.session() as session:
        done = resume_queues(session, names, fairness_key=fairness_key, by=by, dry_run=dry_run, model=database.model)
        session.commit()
    print_changed("queue", done.ids, "resumed", dry_run=dry_run, as_json=as_json)


@queues.command()
@application_argument("application")
@click.option("--dry-run", is_flag=True, help="Only show the differences.")
@by_option
@json_option
@url_option
def sync(application: str, url: str | None, *, dry_run: bool, by: str, as_json: bool) -> None:
    """Synchronize the settings of queues with the application's JobQueue. Pauses are kept; nothing is deleted.

    Records the queue, priority, attempts and timeout that handlers declare, too, as a worker does at start.
    """
    jobs = load_jobs(application)
    with Database(parse_url(url), jobs.model).session() as session:
        synced = sync_queues(session, jobs.declared_queues, by=by, model=jobs.model)
        record_job_types(session, jobs.registry, model=jobs.model)
        session.rollback() if dry_run else session.commit()
    if as_json:
        changed = {name: {key: list(pair) for key, pair in what.items()} for name, what in synced.changed.items()}
        print_json(asdict(replace(synced, changed={})) | {"changed": changed, "dry_run": dry_run})
        return
    would = "would be " if dry_run else ""
    for name in synced.created:
        echo(f"{name}: {would}created")
    for name, what in synced.changed.items():
        changes = ", ".join(f"{key} {shown(old)} -> {shown(new)}" for key, (old, new) in what.items())
        echo(f"{name}: {would}changed: {changes}")
    for name in synced.undeclared:
        echo(f"{name}: not declared, not changed")
    echo(f"{counted(len(synced.unchanged), 'queue')} unchanged")

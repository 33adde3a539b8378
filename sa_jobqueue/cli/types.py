"""`sa-jobqueue types`: list, pause and resume job types, and change their settings."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Final

import click

from sa_jobqueue.cli._limits import rate_text, read_settings, setting_options
from sa_jobqueue.cli._options import Database, by_option, dry_run_option, json_option, with_database
from sa_jobqueue.cli._output import counted, print_changed, print_fields, print_json, print_table
from sa_jobqueue.operations import get_job_type, list_job_types, pause_job_types, resume_job_types, upsert_job_type
from sa_jobqueue.operations.pages import every_item
from sa_jobqueue.registry.settings import Limits

_names: Final = click.argument("names", metavar="TYPE...", nargs=-1, required=True)
_HEADINGS: Final = ("job type", "paused", "by", "concurrency", "rate", "workers")


@click.group()
def types() -> None:
    """List, pause and resume job types, and set their limits."""


@types.command("list")
@json_option
@with_database
def list_(database: Database, /, *, as_json: bool) -> None:
    """List job types that have settings or an active worker."""
    with database.session() as session:
        found = list(every_item(lambda after: list_job_types(session, after=after, model=database.model)))
    if as_json:
        print_json({"types": [asdict(one) for one in found]})
        return
    rows = [
        (one.type_name, one.paused_at, one.paused_by, one.global_concurrency, rate_text(one), one.workers) for one in found
    ]
    print_table(counted(len(found), "job type"), _HEADINGS, rows)


@types.command("set")
@click.argument("name", metavar="TYPE")
@setting_options(Limits)
@by_option
@json_option
@with_database
def set_(database: Database, /, *, name: str, by: str, as_json: bool, **given: str | None) -> None:
    """Change the limits of a job type. Options that are not given keep their value.

    \b
    Example:
      sa-jobqueue types set send_receipt --global-concurrency 3 --rate-limit none
    """
    with database.session() as session:
        current = get_job_type(session, name, for_update=True, model=database.model).settings
        upsert_job_type(session, replace(current, **read_settings(Limits, given)), by=by, model=database.model)
        session.commit()
        document = asdict(get_job_type(session, name, model=database.model))
    print_json(document) if as_json else print_fields(f"job type {name}", document)


@types.command()
@_names
@dry_run_option
@by_option
@json_option
@with_database
def pause(database: Database, /, *, names: tuple[str, ...], dry_run: bool, by: str, as_json: bool) -> None:
    """Pause job types: start none of their jobs until they are resumed. Running jobs continue."""
    with database.session() as session:
        done = pause_job_types(session, names, by=by, dry_run=dry_run, model=database.model)
        session.commit()
    print_changed("job type", done.ids, "paused", dry_run=dry_run, as_json=as_json)


@types.command()
@_names
@dry_run_option
@by_option
@json_option
@with_database
def resume(database: Database, /, *, names: tuple[str, ...], dry_run: bool, by: str, as_json: bool) -> None:
    """Resume paused job types."""
    with database.session() as session:
        done = resume_job_types(session, names, by=by, dry_run=dry_run, model=database.model)
        session.commit()
    print_changed("job type", done.ids, "resumed", dry_run=dry_run, as_json=as_json)

"""`sa-jobqueue events`: the events that jobs wait for."""

from __future__ import annotations

from dataclasses import asdict
from datetime import timedelta
from typing import Any

import click

from sa_jobqueue.cli._options import Database, by_option, duration_option, json_argument, reading
from sa_jobqueue.cli._output import counted, print_json, print_result, print_table
from sa_jobqueue.operations import list_awaited_events, send_event
from sa_jobqueue.operations.pages import every_item


@click.group()
def events() -> None:
    """Send the events that jobs wait for, and list them."""


@events.command("list")
@reading
def list_(database: Database, /, *, as_json: bool) -> None:
    """List the events that jobs wait for."""
    with database.session() as session:
        found = list(every_item(lambda after: list_awaited_events(session, after=after, model=database.model)))
    if as_json:
        print_json({"events": [asdict(one) for one in found]})
        return
    rows = [(one.event, one.jobs, one.since, one.times_out_at) for one in found]
    print_table(counted(len(found), "event"), ["event", "waiting jobs", "since", "first timeout"], rows)


@events.command()
@click.argument("name", metavar="NAME")
@json_argument("payload")
@duration_option("--keep", "How long to keep it for jobs that begin to wait later.", default=timedelta(days=30))
@by_option
@reading
def send(database: Database, /, *, name: str, payload: Any, keep: timedelta, by: str, as_json: bool) -> None:
    """Send the event NAME with a JSON payload. With - the payload is read from standard input.

    Jobs that wait for it continue immediately. The first event of a name counts, until it expires.

    \b
    Example:
      sa-jobqueue events send approved:7 '{"by": "ann"}'
    """
    with database.session() as session:
        is_first = send_event(session, name, payload, keep=keep, by=by, model=database.model)
        session.commit()
    text = f"event {name} sent" if is_first else f"event {name} was sent before and counts; nothing was changed"
    print_result({"event": name, "is_first": is_first}, text, as_json=as_json)

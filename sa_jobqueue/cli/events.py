"""`sa-jobqueue events`: the events that jobs wait for."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

import click

from sa_jobqueue.cli import _options as opts
from sa_jobqueue.cli import noun_group
from sa_jobqueue.cli._output import print_result
from sa_jobqueue.cli._rows import NamedRows
from sa_jobqueue.operations import list_awaited_events, send_event

events: Final = noun_group("events")
_rows: Final = NamedRows(events, "event")
_rows.add_list(
    "events",
    list_awaited_events,
    {"event": "event", "waiting jobs": "jobs", "since": "since", "first timeout": "times_out_at"},
    "List the events that jobs wait for.",
)


@events.command()
@click.argument("event", metavar="NAME")
@opts.json_argument("payload")
@opts.duration_option("--keep", "How long to keep it for jobs that begin to wait later.", default=timedelta(days=30))
@opts.by_option
@opts.reading
def send(database: opts.Database, /, *, event: str, payload: Any, keep: timedelta, by: str) -> None:
    """Send the event NAME with a JSON payload. With - the payload is read from standard input.

    Jobs that wait for it continue immediately. The first event of a name counts, until it expires.

    \b
    Example:
      sa-jobqueue events send approved:7 '{"by": "ann"}'
    """
    is_first = database.run(send_event, event, payload, keep=keep, by=by)
    text = f"event {event} sent" if is_first else f"event {event} was sent before and counts; nothing was changed"
    print_result({"event": event, "is_first": is_first}, text)

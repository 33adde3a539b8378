"""`sa-jobqueue events`: the events that jobs wait for."""

from __future__ import annotations

from datetime import timedelta
from difflib import get_close_matches
from typing import Any, Final

import click

from sa_jobqueue.cli import _options as opts
from sa_jobqueue.cli import noun_group
from sa_jobqueue.cli._output import counted, print_result
from sa_jobqueue.cli._rows import NamedRows
from sa_jobqueue.operations import delete_event, list_awaited_events, send_event
from sa_jobqueue.operations.pages import MAX_PAGE

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
@click.option("--replace", is_flag=True, help="Delete the event of that name first, if there is one.")
@opts.by_option
@opts.reading
def send(database: opts.Database, /, *, event: str, payload: Any, keep: timedelta, replace: bool, by: str) -> None:
    """Send the event NAME with a JSON payload. With - the payload is read from standard input.

    Jobs that wait for it continue immediately; the output has their number, or the nearest name that jobs wait for. The
    first event of a name counts, until it expires.

    \b
    Example:
      sa-jobqueue events send approved:7 '{"by": "ann"}'
    """
    with database.session() as session:
        awaited = list_awaited_events(session, limit=MAX_PAGE, model=database.model)
    is_first = database.run(send_event, event, payload, keep=keep, replace=replace, by=by)
    jobs_by_event = {item.event: item.jobs for item in awaited.items}
    waiting = jobs_by_event.get(event, None if awaited.next else 0)
    text = f"event {event} sent" if is_first else f"event {event} was sent before and counts; nothing was changed"
    if is_first and waiting == 0:
        nearest = get_close_matches(event, jobs_by_event)
        text += "; no job waits for it yet" + (f". Did you mean {' or '.join(nearest)}?" if nearest else "")
    elif is_first and waiting:
        text += f"; {counted(waiting, 'job')} waited for it"
    print_result({"event": event, "is_first": is_first, "waiting_jobs": waiting}, text)


@events.command()
@click.argument("event", metavar="NAME")
@opts.by_option
@opts.reading
def delete(database: opts.Database, /, *, event: str, by: str) -> None:
    """Delete the event NAME, so that another one of its name can be sent.

    Jobs that have got its payload keep it; others wait on.
    """
    is_deleted = database.run(delete_event, event, by=by)
    text = f"event {event} deleted" if is_deleted else f"event {event} was not sent; nothing was changed"
    print_result({"event": event, "is_deleted": is_deleted}, text)

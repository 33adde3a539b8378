"""Events that jobs wait for, by name, and the form that sends one: the approval of a person."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy.orm import Session

from sa_jobqueue.dashboard import forms
from sa_jobqueue.dashboard.access import Permission
from sa_jobqueue.dashboard.parameters import MAX_VALUES
from sa_jobqueue.dashboard.screens.base import PAGE, Act, Changes, Context, Screen
from sa_jobqueue.models.event import check_event
from sa_jobqueue.operations import delete_event, list_awaited_events, send_event
from sa_jobqueue.operations.pages import SCAN_LIMIT
from sa_jobqueue.statements import steps

_MAX_PAYLOAD: Final = 100_000
"""Maximum number of characters of a payload in a form."""


def view(context: Context) -> dict[str, Any]:
    """Return a page of events that jobs wait for; with a name, the jobs that wait for this one, and the sent payload."""
    name = context.params.text("name")
    with context.read() as session:
        after = context.params.text("after")
        page = list_awaited_events(session, after=after, limit=PAGE, model=context.model)
        groups = (
            [] if name or after else session.execute(steps.waits_by_step(context.model), {"scan_limit": SCAN_LIMIT}).all()
        )
        sent = None if name is None else _sent(context, session, name)
        waiting = [] if name is None else _waiting(context, session, name, PAGE)
    return ({} if name is None else {"heading": f"Event {name}"}) | {
        "events": page.items,
        # Of one event each, they would be the same list twice.
        "groups": groups if any(group.events > 1 for group in groups) else [],
        "name": name,
        "sent": sent,
        "waiting": waiting,
        "is_cut": len(waiting) == PAGE,
        "next_url": None if page.next is None else context.url("events", after=page.next),
    }


def _waiting(context: Context, session: Session, event: str, limit: int) -> list[Any]:
    return list(session.execute(steps.waiting_jobs(context.model), {"event": event, "limit": limit}))


def _sent(context: Context, session: Session, event: str) -> Any:
    return session.scalars(steps.sent(context.model), {"event": event}).first()


def _send(context: Context, session: Session) -> Changes:
    event = check_event(forms.name(context, "event"))
    # The field is called input because the log line of an act leaves that one out.
    payload = context.params.document("input", longest=_MAX_PAYLOAD)
    if not context.is_preview:
        return Changes(
            count=int(send_event(session, event, payload, by=context.access.user, model=context.model)), ids=[event]
        )
    if (sent := _sent(context, session, event)) is not None:
        effect = f"Event {event} was sent before, by {sent.sent_by}, and counts: sending it again changes nothing."
        return Changes(count=0, effect=effect)
    waiting = _waiting(context, session, event, MAX_VALUES)
    lines = forms.folded((job.type_name, job.id, f"in step {step.name}") for job, step in waiting)
    effect = (
        "The jobs that wait for it continue immediately." if waiting else "No job waits for it yet: it is kept for 30 days."
    )
    return Changes(count=1, effect=effect, details=lines)


def _delete(context: Context, session: Session) -> Changes:
    event = check_event(forms.name(context, "event"))
    if not context.is_preview:
        return Changes(count=int(delete_event(session, event, by=context.access.user, model=context.model)), ids=[event])
    sent = _sent(context, session, event)
    effect = (
        f"Event {event} was not sent, or has expired."
        if sent is None
        else "Another one of its name can be sent then. Jobs that have got its payload keep it."
    )
    return Changes(count=int(sent is not None), effect=effect)


SCREEN = Screen(
    name="events",
    title="Events",
    view=view,
    group="Control",
    acts=(
        Act(Permission.SEND_EVENT, "Send the event", _send, "sent"),
        Act(Permission.DELETE_EVENT, "Delete the event", _delete, "deleted"),
    ),
)

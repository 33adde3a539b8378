"""Events that jobs wait for, by name, and the form that sends one: the approval of a person."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy.orm import Session

from sa_jobqueue.dashboard import forms
from sa_jobqueue.dashboard.access import Permission
from sa_jobqueue.dashboard.screens.base import PAGE, Act, Context, Outcome, Preview, Screen
from sa_jobqueue.models.event import check_event
from sa_jobqueue.operations import list_awaited_events, send_event
from sa_jobqueue.statements import steps

_MAX_PAYLOAD: Final = 100_000
"""Maximum number of characters of a payload in a form."""


def view(context: Context) -> dict[str, Any]:
    """Return a page of events that jobs wait for; with a name, the jobs that wait for this one, and the sent payload."""
    name = context.params.text("name")
    with context.read() as session:
        page = list_awaited_events(session, after=context.params.text("after"), limit=PAGE, model=context.model)
        sent = None if name is None else _sent(context, session, name)
        waiting = [] if name is None else _waiting(context, session, name, PAGE)
    return ({} if name is None else {"heading": f"Event {name}"}) | {
        "events": page.items,
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


def _given(context: Context) -> tuple[str, Any]:
    # The field is called input because the log line of an act leaves that one out.
    event = check_event(forms.name(context, "event"))
    return event, context.params.document("input", longest=_MAX_PAYLOAD)


def _preview(context: Context, session: Session) -> Preview:
    event, _ = _given(context)
    sent = _sent(context, session, event)
    if sent is not None:
        sentence = f"Event {event} was sent before, by {sent.sent_by}, and counts: sending it again changes nothing."
        return Preview(count=0, sentence=sentence)
    waiting = _waiting(context, session, event, forms.LISTED + 1)
    lines = forms.cut([f"{job.type_name} {job.id}, in step {step.name}" for job, step in waiting])
    sentence = (
        "The jobs that wait for it continue immediately." if waiting else "No job waits for it yet: it is kept for 30 days."
    )
    return Preview(count=1, sentence=sentence, details=lines)


def _send(context: Context, session: Session) -> Outcome:
    event, payload = _given(context)
    is_first = send_event(session, event, payload, by=context.access.user, model=context.model)
    sentence = "sent" if is_first else "sent: it was sent before, and the first one counts"
    return Outcome(changed=int(is_first), sentence=sentence, ids=[event])


SCREEN = Screen(
    name="events",
    title="Events",
    view=view,
    group="Control",
    acts=(Act(Permission.SEND_EVENT, "Send the event", _preview, _send),),
)

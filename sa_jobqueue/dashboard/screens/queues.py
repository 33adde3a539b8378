"""Queues and fairness keys: backlog, settings, pause and resume."""

from __future__ import annotations

from typing import Any

from sqlalchemy.orm import Session

from sa_jobqueue.dashboard.access import Permission
from sa_jobqueue.dashboard.parameters import ParameterError
from sa_jobqueue.dashboard.screens.base import Act, Context, Outcome, Preview, Screen
from sa_jobqueue.operations import list_queues, pause_queues, resume_queues
from sa_jobqueue.policies.fairness import named, part_of


def view(context: Context) -> dict[str, Any]:
    """Return the queues that have a row or a worker, with the figures of the cached report."""
    params = context.params
    names = params.texts("name", at_most=100)
    after = (params.text("after") or "", params.text("after_key") or "") if "after" in params else None
    with context.read() as session:
        page = list_queues(session, names=names, after=after, limit=200, model=context.model)
    sample = context.sample()
    report = sample.overview.health if sample.overview else None
    depths = {(one.queue, one.fairness_key): one for one in report.queues} if report else {}
    rates = {one.queue: one for one in report.rates.queues} if report else {}
    listed = {(one.name, one.fairness_key) for one in page}
    return {
        "queues": [(one, depths.get((one.name, one.fairness_key)), _rate(one, rates)) for one in page],
        # Jobs wait in them, and they have neither a row nor a worker.
        "others": [] if names or after or page.next else [one for key, one in depths.items() if key not in listed],
        "report": report,
        "sample": sample,
        "names": names,
        "next_url": None if page.next is None else context.url("queues", after=page.next[0], after_key=page.next[1]),
    }


def _rate(one: Any, rates: dict[str, Any]) -> Any:
    return None if one.fairness_key else rates.get(one.name)


def _asked(context: Context) -> tuple[str, str]:
    name = context.params.text("name")
    if name is None:
        raise ParameterError("name", "is missing: the name of a queue")
    return name, context.params.text("fairness_key") or ""


def _preview_pause(context: Context, session: Session) -> Preview:
    name, key = _asked(context)
    found = list_queues(session, names=[name], fairness_key=key, model=context.model).items
    by = [one.paused_by for one in found if one.paused_at is not None]
    if by:
        return Preview(count=0, sentence=f"It is already paused, by {by[0] or 'an unknown user'}.")
    what = "No worker starts its jobs until it is resumed. Running jobs continue, and what is enqueued waits."
    return Preview(count=1, sentence=what, details=[_title(context, name, key)])


def _pause(context: Context, session: Session) -> Outcome:
    name, key = _asked(context)
    result = pause_queues(session, [name], fairness_key=key, by=context.access.user, model=context.model)
    return Outcome(changed=result.changed, sentence="paused", ids=result.ids)


def _preview_resume(context: Context, session: Session) -> Preview:
    name, key = _asked(context)
    found = list_queues(session, names=[name], fairness_key=key, model=context.model).items
    if not any(one.paused_at is not None for one in found):
        return Preview(count=0, sentence="It is not paused.")
    return Preview(count=1, sentence="Workers start its jobs again.", details=[_title(context, name, key)])


def _resume(context: Context, session: Session) -> Outcome:
    name, key = _asked(context)
    result = resume_queues(session, [name], fairness_key=key, by=context.access.user, model=context.model)
    return Outcome(changed=result.changed, sentence="resumed", ids=result.ids)


def _title(context: Context, name: str, key: str) -> str:
    """Return a queue with the number of its due jobs, by the cached report."""
    overview = context.sample().overview
    depths = [one for one in overview.health.queues if (one.queue, one.fairness_key) == (name, key)] if overview else []
    due = f", {depths[0].due:,}{' or more' if depths[0].is_capped else ''} jobs due" if depths else ""
    return f"{named(part_of(name, key))}{due}"


SCREEN = Screen(
    name="queues",
    title="Queues",
    view=view,
    acts=(
        Act(
            name="pause-queues",
            title="Pause the queue",
            permission=Permission.PAUSE_QUEUES,
            preview=_preview_pause,
            run=_pause,
        ),
        Act(
            name="resume-queues",
            title="Resume the queue",
            permission=Permission.RESUME_QUEUES,
            preview=_preview_resume,
            run=_resume,
        ),
    ),
)

"""Queues and fairness keys: backlog, settings, pause and resume, change and delete the settings."""

from __future__ import annotations

from typing import Any

from sqlalchemy.orm import Session

from sa_jobqueue.dashboard import forms
from sa_jobqueue.dashboard.access import Permission
from sa_jobqueue.dashboard.parameters import ParameterError
from sa_jobqueue.dashboard.screens.base import Act, Context, Outcome, Preview, Screen
from sa_jobqueue.operations import (
    QueueStatus,
    delete_queues,
    get_queue,
    list_queues,
    pause_queues,
    resume_queues,
    upsert_queue,
)
from sa_jobqueue.policies.fairness import QueueKey
from sa_jobqueue.registry.settings import QueueColumns, QueueSettings


def view(context: Context) -> dict[str, Any]:
    """Return the queues that have a row or a worker, with the figures of the cached report."""
    params = context.params
    names = params.texts("name", at_most=100)
    after = (params.text("after") or "", params.text("after_key") or "") if "after" in params else None
    with context.read() as session:
        page = list_queues(
            session,
            names=names,
            after=after,
            limit=200,
            heartbeat_timeout=context.source.heartbeat_timeout,
            model=context.model,
        )
    sample = context.sample()
    report = sample.value.health if sample.value else None
    depths = {(one.queue, one.fairness_key): one for one in report.queues} if report else {}
    rates = {one.queue: one for one in report.rates.queues} if report else {}
    listed: dict[tuple[str, str], Any] = {(one.name, one.fairness_key): one for one in page}
    if not (names or after or page.next):
        # Jobs wait in them, and they have neither a row nor a worker.
        listed |= {key: None for key in depths if key not in listed}
    return {
        "queues": [(one, *key, depths.get(key), None if key[1] else rates.get(key[0])) for key, one in listed.items()],
        "report": report,
        # Without a count, a queue that has none is not known to be empty.
        "is_counted": report is not None and "queues" not in report.missing,
        "sample": sample,
        "names": names,
        "next_url": None if page.next is None else context.url("queues", after=page.next[0], after_key=page.next[1]),
    }


def _asked(context: Context) -> tuple[list[str], str]:
    return forms.names(context, "queue"), context.params.text("fairness_key") or ""


def _preview_pause(context: Context, session: Session) -> Preview:
    given, key = _asked(context)
    result = pause_queues(session, given, fairness_key=key, dry_run=True, model=context.model)
    found = list_queues(session, names=given, fairness_key=key, model=context.model)
    what = "No worker starts its jobs until it is resumed. Running jobs continue, and what is enqueued waits."
    paused_by = {one.name: one.paused_by for one in found}
    return forms.preview_pause(result, given, paused_by, what, lambda name: _title(context, name, key))


def _pause(context: Context, session: Session) -> Outcome:
    given, key = _asked(context)
    result = pause_queues(session, given, fairness_key=key, by=context.access.user, model=context.model)
    return Outcome(changed=result.changed, sentence="paused", ids=result.ids)


def _preview_resume(context: Context, session: Session) -> Preview:
    given, key = _asked(context)
    result = resume_queues(session, given, fairness_key=key, dry_run=True, model=context.model)
    return forms.preview_resume(result, given, "Workers start its jobs again.", lambda name: _title(context, name, key))


def _resume(context: Context, session: Session) -> Outcome:
    given, key = _asked(context)
    result = resume_queues(session, given, fairness_key=key, by=context.access.user, model=context.model)
    return Outcome(changed=result.changed, sentence="resumed", ids=result.ids)


def _settings(context: Context) -> QueueSettings:
    columns = forms.settings(context, QueueColumns)
    if columns.retry_base is None and (columns.retry_factor, columns.retry_cap) != (None, None):
        raise ParameterError("retry_base", "is missing: a backoff has an initial wait")
    return columns.of_queue(forms.name(context, "queue"), context.params.text("fairness_key") or "")


def _standing(context: Context, session: Session, settings: QueueSettings) -> QueueStatus | None:
    found = list_queues(session, names=[settings.name], fairness_key=settings.fairness_key, model=context.model).items
    return found[0] if found else None


def _preview_upsert(context: Context, session: Session) -> Preview:
    settings = _settings(context)
    one = _standing(context, session, settings)
    default = QueueSettings(name=settings.name, fairness_key=settings.fairness_key).row
    before = default if one is None else {column: getattr(one, column) for column in default}
    is_written = upsert_queue(session, settings, dry_run=True, model=context.model)
    what = "Workers apply the settings from their next claim on. What code declares comes back with `queues sync`."
    return Preview(count=int(is_written), sentence=what, details=forms.differences(before, settings.row))


def _upsert(context: Context, session: Session) -> Outcome:
    settings = _settings(context)
    one = _standing(context, session, settings)
    if one is not None and one.created_at is not None:
        key = settings.fairness_key
        one = get_queue(session, settings.name, fairness_key=key, for_update=True, model=context.model)
    forms.refuse_if_changed(context, one.updated_at if one else None)
    is_written = upsert_queue(session, settings, by=context.access.user, model=context.model)
    return Outcome(changed=int(is_written), sentence="set", ids=[settings.name] if is_written else [])


def _preview_delete(context: Context, session: Session) -> Preview:
    given, key = _asked(context)
    result = delete_queues(session, given, fairness_key=key, dry_run=True, model=context.model)
    what = (
        "The defaults hold for them then, and they are not paused. Their jobs stay and run. What code declares comes back "
        "with `queues sync`, and with the next worker that starts."
    )
    return Preview(count=result.changed, sentence=what, details=forms.cut([_title(context, one, key) for one in result.ids]))


def _delete(context: Context, session: Session) -> Outcome:
    given, key = _asked(context)
    result = delete_queues(session, given, fairness_key=key, by=context.access.user, model=context.model)
    return Outcome(changed=result.changed, sentence="deleted", ids=result.ids)


def _title(context: Context, name: str, key: str) -> str:
    """Return a queue with the number of its due jobs, by the cached report."""
    overview = context.sample().value
    depths = [one for one in overview.health.queues if (one.queue, one.fairness_key) == (name, key)] if overview else []
    due = f", {depths[0].due:,}{' or more' if depths[0].is_capped else ''} jobs due" if depths else ""
    return f"{QueueKey(name, key).named}{due}"


SCREEN = Screen(
    name="queues",
    title="Queues",
    view=view,
    group="Control",
    acts=(
        Act(Permission.PAUSE_QUEUES, "Pause queues", _preview_pause, _pause),
        Act(Permission.RESUME_QUEUES, "Resume queues", _preview_resume, _resume),
        Act(Permission.UPSERT_QUEUE, "Set the queue", _preview_upsert, _upsert),
        Act(Permission.DELETE_QUEUES, "Delete the settings", _preview_delete, _delete),
    ),
)

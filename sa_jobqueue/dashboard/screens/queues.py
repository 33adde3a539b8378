"""Queues and fairness keys: backlog, settings, pause and resume, change and delete the settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy.orm import Session

from sa_jobqueue.dashboard import forms
from sa_jobqueue.dashboard.access import Permission
from sa_jobqueue.dashboard.parameters import ParameterError
from sa_jobqueue.dashboard.screens.base import Act, Changes, Context, Screen
from sa_jobqueue.operations import (
    delete_queues,
    get_queue,
    list_queues,
    pause_queues,
    resume_queues,
    upsert_queue,
)
from sa_jobqueue.policies.fairness import QueueKey
from sa_jobqueue.registry.limits import QueueColumns, QueueSettings


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
    report = sample.value
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


def _pause(context: Context, session: Session) -> Changes:
    given, key = _asked(context)
    found = list_queues(session, names=given, fairness_key=key, model=context.model)
    by = {one.name: one.paused_by or "an unknown user" for one in found}
    result = pause_queues(session, given, fairness_key=key, **context.change)
    return forms.changes(result, given, lambda name: f"is already paused, by {by[name]}", _titles(context, key))


def _resume(context: Context, session: Session) -> Changes:
    given, key = _asked(context)
    result = resume_queues(session, given, fairness_key=key, **context.change)
    return forms.changes(result, given, lambda name: "is not paused", _titles(context, key))


def _upsert(context: Context, session: Session) -> Changes:
    columns = forms.settings(context, QueueColumns)
    if columns.retry_base is None and (columns.retry_factor, columns.retry_cap) != (None, None):
        raise ParameterError("retry_base", "is missing: a backoff has an initial wait")
    name, key, model = forms.name(context, "queue"), context.params.text("fairness_key") or "", context.model
    settings = columns.of_queue(name, key)
    one = next(iter(list_queues(session, names=[name], fairness_key=key, model=model)), None)
    if not context.is_preview:
        if one is not None and one.created_at is not None:
            one = get_queue(session, name, fairness_key=key, for_update=True, model=model)
        forms.refuse_if_changed(context, one.updated_at if one else None)
    default = QueueSettings(name=name, fairness_key=key).row
    before = default if one is None else {column: getattr(one, column) for column in default}
    is_written = upsert_queue(session, settings, **context.change)
    return Changes(count=int(is_written), details=forms.differences(before, settings.row), ids=[name])


def _delete(context: Context, session: Session) -> Changes:
    given, key = _asked(context)
    result = delete_queues(session, given, fairness_key=key, **context.change)
    return forms.changes(result, given, lambda name: "has no settings", _titles(context, key))


def _titles(context: Context, key: str) -> Callable[[str], str]:
    """Return a function that returns a queue with the number of its due jobs, by the cached report."""
    report = context.sample().value
    depths = {one.queue: one for one in report.queues if one.fairness_key == key} if report else {}

    def title(name: str) -> str:
        due = depths.get(name)
        jobs = f", {due.due:,}{' or more' if due.is_capped else ''} jobs due" if due else ""
        return f"{QueueKey(name, key).named}{jobs}"

    return title


SCREEN = Screen(
    name="queues",
    title="Queues",
    view=view,
    group="Control",
    acts=(
        Act(
            Permission.PAUSE_QUEUES,
            "Pause queues",
            _pause,
            "paused",
            "No worker starts its jobs until it is resumed. Running jobs continue, and what is enqueued waits.",
        ),
        Act(Permission.RESUME_QUEUES, "Resume queues", _resume, "resumed", "Workers start its jobs again."),
        Act(
            Permission.UPSERT_QUEUE,
            "Set the queue",
            _upsert,
            "set",
            "Workers apply the settings from their next claim on. What code declares comes back with `queues sync`.",
        ),
        Act(
            Permission.DELETE_QUEUES,
            "Delete the settings",
            _delete,
            "deleted",
            "The defaults hold for them then, and they are not paused. Their jobs stay and run. What code declares comes "
            "back with `queues sync`, and with the next worker that starts.",
        ),
    ),
)

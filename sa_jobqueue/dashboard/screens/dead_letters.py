"""Dead letters by error, and one by one; redrive or dismiss a group, all that a filter finds, or the selected ones."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from sa_jobqueue import operations
from sa_jobqueue.dashboard import forms
from sa_jobqueue.dashboard.access import Permission
from sa_jobqueue.dashboard.screens.base import PAGE, Act, Changes, Context, Screen
from sa_jobqueue.operations.pages import BulkResult
from sa_jobqueue.types import DeadReason

WINDOWS: Final = {
    "all": None,
    "1h": timedelta(hours=1),
    "3h": timedelta(hours=3),
    "24h": timedelta(hours=24),
    "3d": timedelta(days=3),
    "7d": timedelta(days=7),
}
_RESOLVED: Final = {"no": False, "yes": True, "any": None}
_GROUPS: Final = 200


def read_filter(context: Context, now: datetime) -> operations.DeadLetterFilter:
    """Return the filter of a request. `died_after` is exact; `within` is relative to `now`, the database's clock."""
    params = context.params
    window = WINDOWS[params.choice("within", tuple(WINDOWS))]
    died_after = params.instant("died_after") or (None if window is None else now - window)
    return operations.DeadLetterFilter(
        ids=params.job_ids("id", context.model),
        job_ids=params.job_ids("job", context.model),
        types=params.texts("type"),
        queues=params.texts("queue"),
        fairness_keys=params.texts("fairness_key"),
        reasons=params.choices("reason", DeadReason),
        fingerprints=params.texts("fingerprint"),
        died_after=died_after,
        died_before=params.instant("died_before"),
        resolved=_RESOLVED[params.choice("resolved", tuple(_RESOLVED))],
    )


def view(context: Context) -> dict[str, Any]:
    """Return groups of dead letters, and one page of them."""
    params = context.params
    limit = params.number("limit", low=1, high=200, default=PAGE)
    after = params.job_id("after", context.model)
    names = ("within", "type", "queue", "fairness_key", "reason", "fingerprint", "resolved", "id", "job", "died_after")
    filters: dict[str, Any] = params.given(*names, "died_before")
    within = params.choice("within", tuple(WINDOWS))
    with context.read() as session:
        now = _now(session)
        where = read_filter(context, now)
        groups = operations.group_dead_letters(session, where=where, model=context.model) if after is None else []
        page = operations.list_dead_letters(session, where=where, after=after, limit=limit, model=context.model)
    return {
        "letters": [(letter, context.error_line(letter.type_name, letter.error)) for letter in page],
        "groups": [(group, group_error(context, group)) for group in groups[:_GROUPS]],
        "groups_left_out": max(len(groups) - _GROUPS, 0),
        "total": sum(group.count for group in groups),
        "filters": filters,
        "is_filtered": any(filters.values()),
        "empty": "No dead letter matches." if any(filters.values()) else "There is no unresolved dead letter.",
        "tabs": [
            (
                f"last {window}" if length else window,
                context.url("dead-letters", **filters | {"within": window}),
                window == within,
                None,
            )
            for window, length in WINDOWS.items()
        ],
        "within": within,
        "resolved": params.choice("resolved", tuple(_RESOLVED)),
        "reasons": list(DeadReason),
        # A window that ends now would hold others later: the act is about those that the page counted.
        "exactly": {name: values for name, values in filters.items() if values and name not in {"within", "resolved"}}
        | ({"died_after": where.died_after.isoformat()} if where.died_after else {}),
        "now": now,
        "next_url": None if page.next is None else context.url("dead-letters", **filters, after=page.next),
        "first_url": None if after is None else context.url("dead-letters", **filters),
    }


def group_error(context: Context, group: operations.DeadLetterGroup) -> str:
    """Return the error of a group on one line; empty if it has none."""
    error = {"type": group.error_type, "message": group.message}
    return context.error_line(group.type_name, error) if group.error_type or group.message else ""


def _now(session: Session) -> datetime:
    database_time: datetime = session.execute(select(func.now())).scalar_one()
    return database_time.astimezone(UTC)


def _redrive(context: Context, session: Session) -> Changes:
    where = read_filter(context, _now(session))
    return _changes(context, session, where, operations.redrive_dead_letters(session, where=where, **context.change))


def _dismiss(context: Context, session: Session) -> Changes:
    where = replace(read_filter(context, _now(session)), resolved=False)
    return _changes(context, session, where, operations.dismiss_dead_letters(session, where=where, **context.change))


def _changes(context: Context, session: Session, where: operations.DeadLetterFilter, result: BulkResult[Any]) -> Changes:
    """Return the changes: in the preview with the first dead letters, later with who resolved the rest meanwhile."""
    expected = context.params.number("expected", low=0, high=1_000_000, default=0)
    details = [f"job {job_id} stays dead: {reason}" for job_id, reason in result.conflicts.items()][: forms.LISTED]
    if context.is_preview:
        groups = operations.group_dead_letters(session, where=where, model=context.model)
        details += forms.cut([_line(context, group) for group in groups])
    elif result.changed < min(expected, 1000) and where.resolved is False:
        resolved_letters = operations.list_dead_letters(
            session, where=replace(where, resolved=True), limit=forms.LISTED, model=context.model
        )
        details += [
            f"job {letter.job_id} was already {letter.resolution} at {letter.resolved_at:%Y-%m-%d %H:%M:%S} UTC"
            f" by {letter.resolved_by}"
            for letter in resolved_letters
            if letter.resolved_at is not None
        ]
    return Changes(count=result.changed, details=details, ids=result.ids, has_more=result.next is not None)


def _line(context: Context, group: operations.DeadLetterGroup) -> str:
    job = f"{group.type_name} {group.example_job_id}" if group.count == 1 else f"{group.count:,} × {group.type_name}"
    return f"{job}: {group_error(context, group) or group.reason}"


SCREEN = Screen(
    name="dead-letters",
    title="Dead letters",
    view=view,
    acts=(
        Act(
            Permission.REDRIVE_DEAD_LETTERS,
            "Redrive",
            _redrive,
            "redriven",
            "Their jobs become pending with as many new attempts as they once had; what waits for them goes on.",
        ),
        Act(
            Permission.DISMISS_DEAD_LETTERS,
            "Dismiss",
            _dismiss,
            "dismissed",
            "They count as resolved. Their jobs stay dead, and what waits for these still waits.",
        ),
    ),
)

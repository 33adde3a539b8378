"""The audit: what operators changed, on the command line, in Python and here, and who did it."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from sa_jobqueue.dashboard.parameters import ParameterError
from sa_jobqueue.dashboard.rendering import as_json
from sa_jobqueue.dashboard.screens.base import PAGE, Context, Screen
from sa_jobqueue.operations import AuditFilter, list_audit
from sa_jobqueue.operations.audit import by_command
from sa_jobqueue.operations.pages import SCAN_LIMIT


def view(context: Context) -> dict[str, Any]:
    """Return one page of the audit, newest first."""
    params = context.params
    where = AuditFilter(
        operations=params.texts("operation"),
        done_by=params.texts("by"),
        done_after=params.instant("since"),
        done_before=params.instant("before"),
    )
    with context.read() as session:
        page = list_audit(session, where=where, after=_position(context), limit=PAGE, model=context.model)
    filters: dict[str, Any] = params.given("operation", "by", "since", "before")
    commands = by_command(page)
    return {
        "records": [(command, as_json(command.arguments), [str(row_id) for row_id in command.ids]) for command in commands],
        "filters": filters,
        "next_url": None if page.next is None else context.url("audit", **filters, after=page.next),
        "is_short": page.next is not None and len(page.items) < PAGE,
        "scan_limit": SCAN_LIMIT,
    }


def _position(context: Context) -> UUID | None:
    position = context.params.text("after")
    if position is None:
        return None
    try:
        return UUID(position)
    except ValueError:
        raise ParameterError("after", "must be a UUID") from None


SCREEN = Screen(name="audit", title="Audit", view=view, group="System", refresh=15)

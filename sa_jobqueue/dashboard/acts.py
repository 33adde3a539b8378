"""Changes by the dashboard: each checks a permission, shows a preview, and writes in one transaction with an audit entry."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import parse_qsl

from starlette.exceptions import HTTPException
from starlette.requests import Request

from sa_jobqueue.dashboard.guard import FIELD, check_token
from sa_jobqueue.dashboard.parameters import ParameterError
from sa_jobqueue.dashboard.screens.base import Act, Changes, Context
from sa_jobqueue.display.printable import printable
from sa_jobqueue.operations.audit import MAX_REASON, REASON

MAX_BODY: Final = 1 << 20
"""Maximum size of a form in bytes."""
_FIELDS: Final = 1100
_LOGGED: Final = 100
"""Maximum number of ids in an audit line."""
_log = logging.getLogger("sa_jobqueue.dashboard")


async def read_form(request: Request) -> list[tuple[str, str]]:
    """Return the fields of a form whose token is right, without it. Raises: HTTPException, ParameterError."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/x-www-form-urlencoded":
        raise HTTPException(415, "Only forms are accepted: application/x-www-form-urlencoded.")
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY:
            raise HTTPException(413, f"A form may have at most {MAX_BODY:,} bytes.")
    try:
        text = body.decode("ascii")
        fields = parse_qsl(text, keep_blank_values=True, max_num_fields=_FIELDS, encoding="utf-8", errors="strict")
    except ValueError:
        raise ParameterError("form", f"must have at most {_FIELDS} fields, in UTF-8") from None
    tokens = [value for name, value in fields if name == FIELD]
    check_token(request, tokens[0] if len(tokens) == 1 else None)
    return [(name, value) for name, value in fields if name != FIELD]


def perform(act: Act, context: Context) -> Changes:
    """Return the changes that an act would make, or, if the form is confirmed, run it and return those it made.

    Raises: HTTPException without the permission; the operation's errors, after a line in the log.
    """
    if act.permission not in context.access.permissions:
        raise HTTPException(403, f"You do not have the permission {act.permission.value}.")
    if context.source.is_read_only:
        raise HTTPException(403, "This dashboard is read-only.")
    if context.is_preview:
        with context.read() as session:
            return act.run(context, session)
    try:
        reason = context.params.text("why", longest=MAX_REASON)
        with context.source.write() as session:
            session.info[REASON] = reason
            changes = act.run(context, session)
    except Exception as error:
        _audit(act, context, "refused", error=type(error).__name__)
        raise
    _audit(act, context, "performed", count=changes.count, ids=changes.ids)
    return changes


def _audit(act: Act, context: Context, result: str, *, count: int = 0, ids: Sequence[Any] = (), error: str = "") -> None:
    fields = {
        "user": context.access.user,
        "act": act.name,
        "source": context.source.name,
        "result": result,
        "count": count,
        "ids": [str(row_id) for row_id in ids[:_LOGGED]],
        # Without payloads, as in the audit.
        "parameters": {name: values for name, values in context.params.as_dict().items() if name != "input"},
        "error": error,
    }
    line = " ".join(f"{name}={printable(str(value))}" for name, value in fields.items() if value not in ("", []))
    _log.info("act %s %s", result, line, extra={"dashboard_act": fields})

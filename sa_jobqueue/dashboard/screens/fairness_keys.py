"""Fairness keys: which have jobs due, what share each gets; pause one or open its limits."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy.orm import Session

from sa_jobqueue.dashboard.screens.base import Context, Screen
from sa_jobqueue.statements import fairness_keys

_SCANNED: Final = 100_000
_LISTED: Final = 100


def keys(
    context: Context, session: Session, *, queue: str | None, prefix: str = "", order: str = "due", limit: int = _LISTED
) -> list[Any]:
    """Return the keys of a queue, or of all, each with its share of the last minute's starts; None where none is known."""
    statement = fairness_keys.waiting(context.model, order=order, in_queue=queue is not None)
    parameters: dict[str, Any] = {"prefix": prefix, "scan": _SCANNED, "limit": limit}
    rows = session.execute(statement, parameters | ({} if queue is None else {"queue": queue})).all()
    measured = context.source.shares.sample().value
    shares = {(share.queue, share.fairness_key): share for share in measured.keys} if measured else {}
    return [(row, shares.get((row.queue, row.fairness_key))) for row in rows]


def view(context: Context) -> dict[str, Any]:
    """Return the keys that a prefix finds, in the chosen order."""
    params = context.params
    queue, prefix = params.text("queue"), params.text("key") or ""
    order = params.choice("order", fairness_keys.ORDERS)
    with context.read() as session:
        pairs = keys(context, session, queue=queue, prefix=prefix, order=order, limit=_LISTED + 1)
    return {
        "keys": pairs[:_LISTED],
        "now": context.source.now(),
        "is_cut": len(pairs) > _LISTED,
        "is_partial": bool(pairs) and pairs[0][0].read >= _SCANNED,
        "scanned": _SCANNED,
        "queue": queue,
        "key": prefix,
        "order": order,
    }


SCREEN = Screen(name="fairness-keys", title="Fairness keys", view=view, group="Control")

"""Limits and shares: what queues and keys get against their weights, what rates have left, who holds slots longest."""

from __future__ import annotations

from typing import Any, Final

from sa_jobqueue.dashboard.screens.base import Context, Screen
from sa_jobqueue.observe.shares import Share
from sa_jobqueue.policies.rates import Rate
from sa_jobqueue.statements import limits

_LISTED: Final = 200
_HOLDERS: Final = 5000


def view(context: Context) -> dict[str, Any]:
    """Return the shares of queues and fairness keys, and the limits of queues, fairness keys and job types."""
    model = context.model
    sample = context.source.shares.sample()
    with context.read() as session:
        rows = session.execute(limits.current(model), {"limit": _LISTED + 1}).all()
        held = session.execute(limits.longest_running(model), {"limit": _HOLDERS}).all()
    now = context.source.now()
    key = context.params.text("key") or ""
    return {
        "shares": sample.value,
        "keys": [] if sample.value is None else [one for one in sample.value.keys if key.casefold() in _words(one)],
        "key": key,
        "sample": sample,
        "limits": [(row, Rate.of(row), _longest(row, held)) for row in rows[:_LISTED]],
        "now": now,
        "is_cut": len(rows) > _LISTED,
        "listed": _LISTED,
    }


def _words(one: Share) -> str:
    return f"{one.queue} {one.fairness_key}".casefold()


def _longest(row: Any, held: Any) -> Any:
    """Return the job that has held a slot of a limit longest; None if none runs."""
    own = [
        one
        for one in held
        if (one.is_type, one.name) == (row.is_type, row.name)
        and (not row.fairness_key or one.fairness_key == row.fairness_key)
    ]
    return min(own, key=lambda one: one.started_at, default=None)


SCREEN = Screen(name="limits", title="Limits and shares", view=view, group="Control")

"""Limits and shares: what queues and keys get against their weights, what rates have left, who holds slots longest."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from sa_jobqueue.dashboard.screens.base import Context, Screen
from sa_jobqueue.observe.health.figures import RunningGroup
from sa_jobqueue.policies.rates import Rate
from sa_jobqueue.statements import limits

_LISTED: Final = 200


def view(context: Context) -> dict[str, Any]:
    """Return the shares of queues and fairness keys, and the limits of queues, fairness keys and job types."""
    sample, report = context.source.shares.sample(), context.sample().value
    with context.read() as session:
        rows = session.execute(limits.current(context.model), {"limit": _LISTED + 1}).all()
    shares, groups = sample.value, report.running.groups if report else ()
    key = context.params.text("key") or ""
    return {
        "shares": shares,
        "keys": [share for share in shares.keys if key.casefold() in f"{share.queue} {share.fairness_key}".casefold()]
        if shares
        else [],
        "key": key,
        "sample": sample,
        "report": report,
        "limits": [(row, Rate.of(row), _longest(row, groups)) for row in rows[:_LISTED]],
        "is_cut": len(rows) > _LISTED,
        "listed": _LISTED,
    }


def _longest(row: Any, groups: Iterable[RunningGroup]) -> RunningGroup | None:
    """Return the first group of running jobs under a limit; the longest running job is in the first one."""
    for group in groups:
        of_key = not row.fairness_key or group.fairness_key == row.fairness_key
        if row.name == (group.type_name if row.is_type else group.queue) and of_key:
            return group
    return None


SCREEN = Screen(name="limits", title="Limits and shares", view=view, group="Control")

"""Limits and shares: what queues get against their weights, what rates have left, which concurrency is taken."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from sa_jobqueue.dashboard.screens.base import Context, Screen
from sa_jobqueue.observe.health import Health
from sa_jobqueue.operations import list_queues
from sa_jobqueue.policies.rates import Rate
from sa_jobqueue.statements import limits

_LISTED: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """One queue's part of what was completed in the report's window, and the part that its weight gives it."""

    name: str
    weight: int
    completed: int
    received: float
    """0 to 1, of all that was completed."""
    due_share: float | None
    """0 to 1, of the queues that have due jobs; None for a queue without."""
    due: int
    claim_age: timedelta

    @property
    def is_starving(self) -> bool:
        """Whether it has due jobs and got less than half of its part, while others got theirs."""
        return self.due_share is not None and self.received < self.due_share / 2


def shares(report: Health, weights: dict[str, int]) -> list[Share]:
    """Return the shares of queues, those that starve first, then by name."""
    depths: dict[str, list[Any]] = {}
    for depth in report.queues:
        depths.setdefault(depth.queue, []).append(depth)
    completed = {one.queue: one.completed for one in report.rates.queues}
    due = {name: sum(one.due for one in found) for name, found in depths.items()}
    all_weights = sum(weights.get(name, 1) for name, count in due.items() if count)
    total = sum(completed.values())
    found = [
        Share(
            name=name,
            weight=weights.get(name, 1),
            completed=completed.get(name, 0),
            received=completed.get(name, 0) / total if total else 0.0,
            due_share=weights.get(name, 1) / all_weights if total and due.get(name) else None,
            due=due.get(name, 0),
            claim_age=max((one.claim_age for one in depths.get(name, ()) if one.due), default=timedelta(0)),
        )
        for name in sorted({*depths, *completed})
    ]
    return sorted(found, key=lambda one: (not one.is_starving, one.name))


def view(context: Context) -> dict[str, Any]:
    """Return the shares of queues, and the limits of queues, fairness keys and job types."""
    with context.read() as session:
        rows = session.execute(limits.standing(context.model), {"limit": _LISTED + 1}).all()
        queues = list_queues(session, fairness_key="", model=context.model)
    sample = context.sample()
    report = sample.overview.health if sample.overview else None
    return {
        "sample": sample,
        "report": report,
        "shares": shares(report, {one.name: one.weight for one in queues}) if report else [],
        "limits": [(row, Rate.of(row)) for row in rows[:_LISTED]],
        "is_cut": len(rows) > _LISTED,
    }


SCREEN = Screen(name="limits", title="Limits", view=view)

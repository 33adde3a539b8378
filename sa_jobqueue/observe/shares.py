"""Actual shares of queues and fairness keys, compared with the shares that their weights entitle them to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from sqlalchemy.orm import Session

from sa_jobqueue.models import Job, JobClass
from sa_jobqueue.operations import QueueStatus, list_queues
from sa_jobqueue.operations.pages import every_item
from sa_jobqueue.statements import health

LANES: Final = 2000
"""Maximum number of queues and fairness keys that are read."""
SCANNED: Final = 50_000
"""Maximum number of jobs of the window that are counted."""
_TRANSACTIONS: Final = 500_000
_FEW: Final = 2
"""Number of starts, from which a due share counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Share of a queue, or of a fairness key of a queue, within the window."""

    queue: str
    fairness_key: str
    """Empty for the queue as a whole, with all of its keys."""
    weight: int
    started: int
    """Jobs started in the window; a job that was started twice counts once."""
    received: float
    """0 to 1: of the jobs started in all queues, or for a key of those of its queue."""
    due_share: float | None
    """0 to 1: its weight among the queues, or the keys of its queue, with due jobs; None without due jobs, and where a
    pause, a limit or the lack of a worker decides instead."""
    of_all: int
    """Jobs started in all queues, or for a key in its queue."""
    waiting_for: timedelta | None
    """Time since its oldest due job became due; None without due jobs."""

    @property
    def is_starving(self) -> bool:
        """Return whether it has due jobs and got less than half of its due share, while others got more than theirs.

        A due share of less than a few jobs shows nothing.
        """
        if self.due_share is None or not self.due_share:
            return False
        return self.received < self.due_share / 2 and self.of_all * self.due_share >= _FEW


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """The shares of queues and fairness keys: those that starve first, then those that have waited longest."""

    window: timedelta
    queues: Sequence[Share]
    keys: Sequence[Share]
    is_partial: bool
    """Whether there are more jobs or keys than were read: counts are lower bounds then."""


def shares(session: Session, *, window: timedelta = timedelta(minutes=1), model: JobClass = Job) -> Shares:
    """Return the shares of queues, and of the fairness keys of each queue, in the jobs that were started.

    Jobs that take long are started less often, so a share of starts is not one of slots. Where nothing was started in the
    window, there are no due shares.
    Cost: three statements; at most 2,000 lanes and 50,000 jobs of the window are counted, found among all that the last
    500,000 transactions changed. Locks: none.
    """
    parameters = {"window": window, "transactions": _TRANSACTIONS, "limit": SCANNED}
    rows = session.execute(health.lately(model, by=("queue", "fairness_key")), parameters).all()
    started = {(row.queue, row.fairness_key): row.started for row in rows if row.started}
    lanes = session.execute(health.due_lanes(model), {"limit": LANES}).all()
    found_queues = list(every_item(lambda after: list_queues(session, after=after, model=model)))
    weights = {(queue.name, queue.fairness_key): queue.weight for queue in found_queues}
    served = {queue.name for queue in found_queues if queue.workers and not queue.fairness_key}
    limited = {(queue.name, queue.fairness_key) for queue in found_queues if _is_limited(queue)}
    due = {(row.queue, row.fairness_key): row.waiting_for for row in lanes}
    of_queue: dict[str, int] = defaultdict(int)
    due_of_queue: dict[str, timedelta] = {}
    keys_of: dict[str, set[str]] = defaultdict(set)
    for (queue, key), count in started.items():
        of_queue[queue] += count
        keys_of[queue].add(key)
    for (queue, key), waiting_for in due.items():
        due_of_queue[queue] = max(due_of_queue.get(queue, timedelta(0)), waiting_for)
        keys_of[queue].add(key)
    queues = _compared(
        {(queue, ""): (of_queue.get(queue, 0), due_of_queue.get(queue)) for queue in keys_of},
        weights,
        limited | {(queue, "") for queue in keys_of if queue not in served},
    )
    # Keys compete within a queue that gives them slots as they come.
    apart = {
        queue.name for queue in found_queues if queue.concurrency_per_key or (queue.paused_at and not queue.fairness_key)
    }
    keys: list[Share] = []
    for queue, fairness_keys in keys_of.items():
        if fairness_keys != {""}:
            keys += _compared(
                {(queue, key): (started.get((queue, key), 0), due.get((queue, key))) for key in fairness_keys},
                weights,
                {queue_key for queue_key in limited if queue_key[1]}
                if queue in served - apart
                else {(queue, key) for key in fairness_keys},
            )
    return Shares(
        window=window,
        queues=_ordered(queues),
        keys=_ordered(keys),
        is_partial=sum(row.examined for row in rows) >= SCANNED or len(lanes) >= LANES,
    )


def _is_limited(queue: QueueStatus) -> bool:
    return queue.paused_at is not None or queue.global_concurrency is not None or queue.rate_limit is not None


def _compared(
    starts_by_key: dict[tuple[str, str], tuple[int, timedelta | None]],
    weights: dict[tuple[str, str], int],
    apart: set[tuple[str, str]],
) -> list[Share]:
    """Compare queues, or the keys of one queue, with each other: the jobs started, and how long the oldest has been due.

    `apart`: those whose share something else decides.
    """
    total = sum(count for count, _ in starts_by_key.values())
    competing = {
        queue_key
        for queue_key, (_, waiting_for) in starts_by_key.items()
        if waiting_for is not None and queue_key not in apart
    }
    entitled = sum(weights.get(queue_key, 1) for queue_key in competing)
    return [
        Share(
            queue=queue,
            fairness_key=key,
            weight=weights.get((queue, key), 1),
            started=count,
            received=count / total if total else 0.0,
            due_share=weights.get((queue, key), 1) / entitled if total and (queue, key) in competing else None,
            of_all=total,
            waiting_for=waiting_for,
        )
        for (queue, key), (count, waiting_for) in starts_by_key.items()
    ]


def _ordered(shares: list[Share]) -> list[Share]:
    def place(share: Share) -> tuple[bool, timedelta, str, str]:
        return not share.is_starving, -(share.waiting_for or timedelta(0)), share.queue, share.fairness_key

    return sorted(shares, key=place)

"""Whether a function of the application decides when a job starts, for `explain_job`: workers tell which they have."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from sa_jobqueue.operations.explaining_causes import Cause
from sa_jobqueue.operations.spans import span
from sa_jobqueue.operations.workers import WorkerStatus
from sa_jobqueue.policies.fairness import whole


def decided_by_a_function(
    job: Any, ready: Sequence[WorkerStatus], *, ahead: int, is_full: bool
) -> tuple[Cause, str, dict[str, Any]] | None:
    """Return that a function leaves a due job out, or will be asked about it, and the evidence.

    `ready`: the workers that could run it. `ahead`: how many due jobs of its queue go before it in the ordinary order.
    None where one of those workers starts jobs in the ordinary order, or the job is behind a whole window: nobody has
    asked about it then.
    """
    queue = whole(job.queue)
    told = {worker.id: worker.selectors[queue] for worker in ready if queue in worker.selectors}
    if len(told) < len(ready) or all(ahead >= one["window"] for one in told.values()):
        return None
    worker_id, one = max(told.items(), key=lambda item: int(item[1]["window"]))
    which = f"the function {one['function']}, which chooses in queue {queue!r} (worker {worker_id})"
    longest = None if one["max_wait"] is None else timedelta(seconds=one["max_wait"])
    evidence = {"selector": one["function"], "chosen_by": sorted(told), "window": one["window"], "max_wait": longest}
    if is_full:
        return Cause.BUSY, f"all slots are taken, and {which}, decides what is next", evidence
    bound = "has no max_wait: what it never names never starts"
    if longest is not None:
        bound = f"is passed over once the job has been on offer for its max_wait of {span(longest)}"
    return Cause.NOT_SELECTED, f"and workers have room: it is left out by {which}; the function {bound}", evidence

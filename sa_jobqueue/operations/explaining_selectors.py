"""For `explain_job`: whether a selector decides when a job starts. Workers report their selectors."""

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
    """Return the explanation if a selector did not select a due job, or has yet to decide, else None.

    `ready`: the workers that could run it. `ahead`: how many due jobs of its queue are before it in the default order.
    None if one of those workers uses the default order, or the job is not within a window of candidates.
    """
    queue = whole(job.queue)
    selectors = {worker.id: worker.selectors[queue] for worker in ready if queue in worker.selectors}
    if len(selectors) < len(ready) or all(ahead >= one["window"] for one in selectors.values()):
        return None
    worker_id, one = max(selectors.items(), key=lambda item: int(item[1]["window"]))
    which = f"the selector {one['function']} of queue {queue!r} (worker {worker_id})"
    longest = None if one["max_wait"] is None else timedelta(seconds=one["max_wait"])
    evidence = {"selector": one["function"], "chosen_by": sorted(selectors), "window": one["window"], "max_wait": longest}
    if is_full:
        return Cause.BUSY, f"all slots are in use, and {which} decides which job is next", evidence
    bound = "it has no max_wait, so a job that it never selects never starts"
    if longest is not None:
        bound = f"the job starts without it once it has been a candidate for the max_wait of {span(longest)}"
    return Cause.NOT_SELECTED, f"and workers have free slots, but {which} did not select it; {bound}", evidence

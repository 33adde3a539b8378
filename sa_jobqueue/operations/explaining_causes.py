"""The causes that `explain_job` gives, and which of them to look at first."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class Cause(StrEnum):
    """Why a job stands where it does; the first that holds."""

    COMPLETED = "completed"
    CANCELLED = "cancelled"
    DEAD = "dead"
    RUNNING = "running"
    WORKER_SILENT = "worker_silent"
    """Its worker has not been heard of for too long; others will take the job back."""
    BLOCKED = "blocked"
    SETTLING = "settling"
    """What it waited for has ended, and that is about to be passed on."""
    SCHEDULED = "scheduled"
    RETRYING = "retrying"
    """Its last attempt failed, and the next is not due yet."""
    QUEUE_PAUSED = "queue_paused"
    TYPE_PAUSED = "type_paused"
    EXPIRED = "expired"
    """It was to start by now, and is about to be cancelled."""
    OUT_OF_TURN = "out_of_turn"
    """Another job of its ordering key goes first."""
    LIMITED = "limited"
    """As many of its queue or its type run as may, across all workers."""
    RATE_LIMITED = "rate_limited"
    """As many of its queue or its type were started lately as may, across all workers."""
    NO_WORKER = "no_worker"
    QUEUE_UNSERVED = "queue_unserved"
    TYPE_UNKNOWN = "type_unknown"
    """Workers serve its queue, and none of them has a handler for its type."""
    DRAINING = "draining"
    """Every worker that could run it is stopping."""
    BEHIND = "behind"
    """Others of its queue go first."""
    BUSY = "busy"
    """It is next, and every worker that could run it runs as many jobs as it may."""
    LEFT_OUT = "left_out"
    """A function of the application chooses what starts of its queue, and has not named it."""
    ABOUT_TO_RUN = "about_to_run"


_STUCK: Final = (
    *(
        Cause.DEAD,
        Cause.CANCELLED,
        Cause.QUEUE_PAUSED,
        Cause.TYPE_PAUSED,
        Cause.NO_WORKER,
        Cause.QUEUE_UNSERVED,
        Cause.TYPE_UNKNOWN,
        Cause.DRAINING,
        Cause.EXPIRED,
    ),
    *(Cause.LEFT_OUT, Cause.LIMITED, Cause.RATE_LIMITED, Cause.OUT_OF_TURN),
    *(Cause.WORKER_SILENT, Cause.RETRYING, Cause.SCHEDULED, Cause.BUSY, Cause.BEHIND, Cause.BLOCKED, Cause.RUNNING),
    *(Cause.ABOUT_TO_RUN, Cause.SETTLING, Cause.COMPLETED),
)
ORDER: Final = {cause: place for place, cause in enumerate(_STUCK)}
"""What to look at first: causes that somebody must do something about come before those that pass."""

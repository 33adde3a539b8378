"""How a queue is doing: figures, what is wrong, who holds back vacuum, and what to do about each.

`health` reads the figures (`measuring`), in bounded statements, and judges them by `Thresholds` (`findings`, where all the
wording is). `sa-jobqueue health` prints the same. `docs/guides/monitoring.md` explains the figures and the thresholds.
"""

from sa_jobqueue.observe.health.figures import (
    Code,
    Failures,
    Finding,
    Health,
    Holder,
    HolderKind,
    Horizon,
    IndexHealth,
    Quarantined,
    QueueDepth,
    QueueRates,
    Rates,
    Running,
    Server,
    Severity,
    TableHealth,
    Workers,
)
from sa_jobqueue.observe.health.measuring import health
from sa_jobqueue.observe.health.thresholds import Thresholds

__all__ = [
    "Code",
    "Failures",
    "Finding",
    "Health",
    "Holder",
    "HolderKind",
    "Horizon",
    "IndexHealth",
    "Quarantined",
    "QueueDepth",
    "QueueRates",
    "Rates",
    "Running",
    "Server",
    "Severity",
    "TableHealth",
    "Thresholds",
    "Workers",
    "health",
]

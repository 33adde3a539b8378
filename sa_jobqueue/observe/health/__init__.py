"""The health of a queue: figures, findings with advice, and what holds back the xmin horizon.

`health` reads the figures with bounded statements (`measuring`), and compares them with `Thresholds` (`findings`, which has
all texts). `sa-jobqueue health` prints the report. `docs/guides/monitoring.md` explains the figures and the thresholds.
"""

from sa_jobqueue.observe.health.figures import Code, Finding, Health, Severity
from sa_jobqueue.observe.health.measuring import health
from sa_jobqueue.observe.health.silencing import silence_finding
from sa_jobqueue.observe.health.thresholds import Thresholds, get_thresholds, set_thresholds

__all__ = [
    "Code",
    "Finding",
    "Health",
    "Severity",
    "Thresholds",
    "get_thresholds",
    "health",
    "set_thresholds",
    "silence_finding",
]

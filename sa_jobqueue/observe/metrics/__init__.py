"""Prometheus metrics of a worker (`workers`) and of the database (`database`), served over HTTP.

Names and units follow Prometheus' conventions: the prefix `sa_jobqueue_`, seconds and bytes, `_total` for counters. Labels
are bounded: the job types that a worker has handlers for, the hundred longest queues, and `other` for the rest.
Requires the extra `metrics`.
"""

from sa_jobqueue.observe.metrics.serving import serve_metrics

__all__ = ["serve_metrics"]

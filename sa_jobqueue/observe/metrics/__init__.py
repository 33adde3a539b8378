"""Figures for Prometheus: of one worker as it works (`workers`), and of the database (`database`), served over HTTP.

Names and units follow Prometheus' conventions: `sa_jobqueue_` first, seconds and bytes, `_total` for what only grows.
Labels are bounded: job types are those that a worker has handlers for, queues the hundred longest, the rest is `other`.
Needs: pip install "sa-jobqueue[metrics]".
"""

from sa_jobqueue.observe.metrics.serving import MissingMetricsExtraError, serve_metrics

__all__ = ["MissingMetricsExtraError", "serve_metrics"]

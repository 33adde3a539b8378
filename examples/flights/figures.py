"""Plot the history of a queue: the data frames of the analytics, drawn by plotly, in one HTML page.

`python examples/flights/walkthrough.py --figures flights.html` writes it for the flights. Copy `write_figures` for your
own queue: any plotting library takes these data frames.
"""

from datetime import timedelta
from pathlib import Path

import plotly.express as px

from sa_jobqueue.pipeline.spark.analytics import History, capacity, error_groups, latency_percentiles, throughput


def write_figures(history: History, path: Path, *, every: timedelta = timedelta(minutes=1)) -> None:
    """Write a page with the throughput, the waits and run times, the busy workers and the errors of a history."""
    with history.cached() as cached:  # read once, for all figures
        ended = throughput(cached, every=every).orderBy("bucket_start").toPandas()
        latency = latency_percentiles(cached, ["type_name"]).toPandas()
        busy = capacity(cached, every=every, target_wait=timedelta(seconds=1)).orderBy("bucket_start").toPandas()
        errors = error_groups(cached).orderBy("count", ascending=False).limit(20).toPandas()
    counts = ["enqueued", "completed", "cancelled", "failed", "dead"]
    figures = [
        px.bar(ended, x="bucket_start", y=counts, title="Jobs and attempts in each interval"),
        px.bar(
            latency, x="type_name", y="p95_seconds", color="measure", barmode="group", log_y=True, title="95th percentile"
        ),
        px.bar(busy, x="bucket_start", y="busy_workers", color="type_name", title="Busy workers"),
        px.bar(errors, x="count", y="error_type", orientation="h", title="Errors"),
    ]
    # The script of plotly once, in the page itself: it can be read without a network.
    parts = [figure.to_html(full_html=False, include_plotlyjs=number == 0) for number, figure in enumerate(figures)]
    path.write_text(f"<!doctype html><meta charset=utf-8><title>History of the queue</title>{''.join(parts)}")

"""One page that says how a queue has been doing: for everyone, without a server, from a database, an archive or both.

`collect` computes what the page shows with `sa_jobqueue.spark.analytics`; `render` makes the page of it: HTML that loads
nothing, with its plots, its script and its style inside. The page's policy allows just the scripts it was written with, so
whatever a job's error says is text.
"""

from __future__ import annotations

from sa_jobqueue.report.contents import Contents, collect
from sa_jobqueue.report.page import render

__all__ = ["Contents", "collect", "render"]

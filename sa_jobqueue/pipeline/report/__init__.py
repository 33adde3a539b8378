"""An HTML report of a queue's history, from a database, an archive or both.

`collect` computes the contents with `sa_jobqueue.pipeline.spark.analytics`; `render` returns a self-contained HTML page
without scripts.
"""

from __future__ import annotations

from sa_jobqueue.pipeline.report.contents import Contents, collect
from sa_jobqueue.pipeline.report.page import render

__all__ = ["Contents", "collect", "render"]

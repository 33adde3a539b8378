"""An HTML report of a queue's history, from a database, an archive or both.

`collect` computes the contents with `sa_jobqueue.pipeline.spark.analytics`; `render` returns a self-contained HTML page,
with its plots, script and style. Its content security policy allows only these scripts, so texts of errors are never
executed.
"""

from __future__ import annotations

from sa_jobqueue.pipeline.report.contents import Contents, collect
from sa_jobqueue.pipeline.report.page import render

__all__ = ["Contents", "collect", "render"]

"""Lets Spark find `format("jobqueue")` by itself: it imports every module whose name begins with `pyspark_`.

An exception here would break every user's lookup of any source, so none leaves: a source that cannot be loaded says why
when it is asked for.
"""

from __future__ import annotations

import sys
from typing import Any

try:
    from sa_jobqueue.pipeline.spark.source import JobQueueSource as DefaultSource
except Exception as _error:
    from pyspark.sql.datasource import DataSource

    _REASON = f"{type(_error).__name__}: {_error}"
    if isinstance(_error, ModuleNotFoundError):
        # Spark starts the first `python3` on the path, unless it is told otherwise.
        _REASON += f" (in {sys.executable}: set PYSPARK_PYTHON to the Python in which sa-jobqueue is installed)"

    class DefaultSource(DataSource):  # type: ignore[no-redef]
        """Stands in for a source that cannot be loaded."""

        def __init__(self, options: Any) -> None:
            raise ImportError(f"format('jobqueue') cannot be used here: {_REASON}")

        @classmethod
        def name(cls) -> str:
            """Return what `format` calls it."""
            return "jobqueue"


__all__ = ["DefaultSource"]

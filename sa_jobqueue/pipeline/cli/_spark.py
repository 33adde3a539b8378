"""The Spark session of a command: the active one, or a local one."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def spark_session(name: str) -> Iterator[SparkSession]:
    """Yield the active session, or one that is stopped afterwards; its master is from `spark-defaults.conf`, or local.

    Raises: MissingExtraError, JavaNotFoundError.
    """
    from sa_jobqueue.pipeline.spark import java_home

    if not os.environ.get("SPARK_REMOTE"):
        os.environ["JAVA_HOME"] = str(java_home())
        # instead of the first `python3` on the path
        os.environ["PYSPARK_PYTHON"] = os.environ.get("PYSPARK_PYTHON") or sys.executable
    from pyspark.sql import SparkSession

    present = SparkSession.getActiveSession()
    if present is not None:
        yield present
        return
    builder = SparkSession.builder.appName(f"sa-jobqueue {name}")
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.sql.session.timeZone": "UTC",
    }
    for setting, value in settings.items():
        builder = builder.config(setting, value)
    session = builder.getOrCreate()
    try:
        yield session
    finally:
        session.stop()

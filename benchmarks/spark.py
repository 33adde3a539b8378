"""One Spark for all scenarios of a run, started and warmed up before anything is measured."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import make_url

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TASKS: Final = 2
"""Tasks at once, and written partitions."""
JDBC: Final = Path("/usr/share/java/postgresql.jar")
"""PostgreSQL's JDBC driver, where Debian's package `libpostgresql-jdbc-java` puts it; SA_JOBQUEUE_JDBC_JAR names another."""


@cache
def session() -> SparkSession:
    """Return Spark with `TASKS` cores of this machine; it is stopped when the process ends. Starts a JVM."""
    from pyspark.sql import SparkSession

    from sa_jobqueue.pipeline.spark import java_home

    os.environ["JAVA_HOME"] = str(java_home())
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(f"local[{TASKS}]").appName("benchmarks")
    jar = jdbc_jar()
    for name, value in {
        **({"spark.jars": str(jar)} if jar else {}),
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "2g",
        "spark.sql.shuffle.partitions": str(TASKS),
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.log.level": "ERROR",
    }.items():
        builder = builder.config(name, value)
    started = builder.getOrCreate()
    atexit.register(started.stop)
    return started


def jdbc_jar() -> Path | None:
    """Return PostgreSQL's JDBC driver, if there is one; without it, Spark's own connector is not measured."""
    jar = Path(os.environ.get("SA_JOBQUEUE_JDBC_JAR", JDBC))
    return jar if jar.is_file() else None


def jdbc_options(url: str) -> dict[str, str]:
    """Return what Spark's own connector needs for the same database. Texts become whatever type the column has."""
    at = make_url(url)
    address = f"jdbc:postgresql://{at.host}:{at.port}/{at.database}"
    login = {"user": at.username, "password": at.password}
    return {
        "url": f"{address}?stringtype=unspecified&reWriteBatchedInserts=true",
        "driver": "org.postgresql.Driver",
    } | {name: value for name, value in login.items() if value}


def read(url: str, *, parts: int = TASKS, **options: str) -> None:
    """Read all columns of jobs into a sink that keeps nothing."""
    source = session().read.format("jobqueue").options(url=url, numPartitions=parts, **options)
    source.load("jobs").write.format("noop").mode("overwrite").save()


def wake(url: str) -> None:
    """Have Python workers that have imported what they need: Spark ends those that stood idle for a minute."""
    read(url, queue="no such queue")


def pids() -> list[int]:
    """Return Spark's processes: the JVM, and the Python workers that live on between tasks."""
    gateway: Any = session().sparkContext._gateway
    return list(_tree(gateway.proc.pid))


def _tree(pid: int) -> Iterator[int]:
    yield pid
    for task in Path(f"/proc/{pid}/task").glob("*/children"):  # the JVM forks from whatever thread
        with suppress(OSError):  # which may have ended
            for child in task.read_text().split():
                yield from _tree(int(child))

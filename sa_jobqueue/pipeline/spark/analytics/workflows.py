"""Measures of workflows, which are chains joined by blockers: length, width, critical path."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import fields
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import from_arrow_schema

from sa_jobqueue.pipeline.spark.analytics._expressions import micros, percentiles, seconds
from sa_jobqueue.pipeline.spark.analytics.graphs import Node, components, shape_of
from sa_jobqueue.pipeline.spark.analytics.history import History
from sa_jobqueue.types import ENDED, JobStatus

_TEXTS: Final = pa.list_(pa.string())
_INSTANT: Final = pa.timestamp("us", tz="UTC")
_MEASURED: Final = pa.schema(
    [
        *[("workflow_id", pa.string()), ("type_name", pa.string()), ("chains", pa.int32()), ("jobs", pa.int32())],
        *[("is_ended", pa.bool_()), ("created_at", _INSTANT), ("ended_at", _INSTANT)],
        *[("length", pa.int32()), ("width", pa.int32()), ("max_parallel", pa.int32())],
        *[(f"{name}_seconds", pa.float64()) for name in ("run", "wall", "critical")],
        *[("critical_share", pa.float64()), ("critical_path", _TEXTS), ("stragglers", _TEXTS), ("is_cyclic", pa.bool_())],
    ]
)
DRIVER_JOBS: Final = 100_000
"""Up to this many jobs are measured by the driver, in 4 s and 200 MB, which is faster than starting Spark's Python
workers."""
_SLOW: Final = 0.95
"""A job is slow if it took longer than this share of the ended jobs of its type."""
_ENDED: Final = sorted(status.value for status in ENDED)


def workflows(history: History, *, driver_jobs: int = DRIVER_JOBS) -> DataFrame:
    """Measure each workflow of two jobs or more: chains joined by blockers, directly or through other chains.

    Shape: `workflow_id` (the smallest id of its chains), `type_name` (of the open job enqueued last, else of the job that
    ended last), `chains`, `jobs`, `is_ended`, `created_at` (first), `ended_at` (last; null while one is open), `length`
    (jobs in the longest sequence), `width` (most jobs at one depth), `max_parallel` (most jobs running at a time, by their
    last attempts), `run_seconds` (of all attempts), `wall_seconds` (first enqueueing to last end; null if none ended),
    `critical_path` (job ids: the sequence of jobs, each waiting for the one before, with the longest run time),
    `critical_seconds`, `critical_share` (of the wall time), `stragglers` (jobs on the path slower than 95 % of their type),
    `is_cyclic` (jobs that wait for each other and never run).
    Cost: the driver reads all blockers, about 300 MB for a million, and measures up to `driver_jobs` jobs. Of more, a
    Python task measures each workflow, about 1 GB for a million jobs.
    Source: as `graphs.shape_of`.
    """
    nodes = _nodes(history)
    few = nodes.limit(driver_jobs + 1).toArrow()
    if few.num_rows > driver_jobs:
        return nodes.groupBy("workflow_id").applyInArrow(measured, from_arrow_schema(_MEASURED))
    by_workflow = defaultdict(list)
    for job in few.to_pylist():
        by_workflow[job["workflow_id"]].append(job)
    rows = [measure(jobs) for jobs in by_workflow.values()]
    return nodes.sparkSession.createDataFrame(pa.Table.from_pylist(rows, schema=_MEASURED))


def critical_paths(measured_workflows: DataFrame, history: History) -> DataFrame:
    """Return the jobs of each critical path in the result of `workflows`, in order.

    `measured_workflows`: the result of `workflows`. `history`: the history that it was computed from.
    Shape: `workflow_id`, `position` (from 1), `job_id`, `type_name`, `status`, `run_seconds` (of all attempts),
    `wait_seconds` (from when its last attempt was due until it was claimed; null without a claim), `is_straggler`.
    """
    exploded = measured_workflows.select(
        "workflow_id", "stragglers", sf.posexplode("critical_path").alias("place", "job_id")
    )
    jobs = _timed(history).withColumnRenamed("id", "job_id")
    return exploded.join(jobs, "job_id", "left").select(
        "workflow_id",
        (sf.col("place") + 1).alias("position"),
        "job_id",
        "type_name",
        "status",
        (sf.coalesce("run_micros", sf.lit(0)) / sf.lit(1e6)).alias("run_seconds"),
        "wait_seconds",
        sf.array_contains("stragglers", sf.col("job_id")).alias("is_straggler"),
    )


def _timed(history: History) -> DataFrame:
    """Return each job with `run_micros`, the total run time of its ended attempts."""

    def took(until: str) -> Column:
        return sf.greatest(micros("started_at", until), sf.lit(0))

    earlier = history.attempts.groupBy("job_id").agg(sf.sum(took("ended_at")).alias("earlier_micros"))
    by_worker = (sf.col("status") == JobStatus.COMPLETED.value) & sf.col("completed_by").isNotNull()
    last = sf.when(by_worker, took("completed_at")).otherwise(sf.lit(0))
    claimed = sf.col("started_at") >= sf.col("scheduled_at")
    return history.jobs.join(earlier.withColumnRenamed("job_id", "id"), "id", "left").select(
        "id",
        "type_name",
        "chain_id",
        "chain_index",
        "status",
        (last + sf.coalesce("earlier_micros", sf.lit(0))).alias("run_micros"),
        sf.col("status").isin(_ENDED).alias("is_ended"),
        "created_at",
        sf.when(claimed, sf.col("started_at")).alias("started_at"),
        sf.col("completed_at").alias("ended_at"),
        sf.when(claimed, seconds("scheduled_at", "started_at")).alias("wait_seconds"),
    )


def _nodes(history: History) -> DataFrame:
    """Return the jobs of each workflow of two jobs or more."""
    timed = _timed(history)
    chain_of = timed.select(sf.col("id").alias("job_id"), sf.col("chain_id").alias("a"))
    edges = history.blockers.join(chain_of, "job_id").select("a", sf.col("blocked_by_chain_id").alias("b"))
    workflow_by_chain = components(edges.where("a <> b").distinct().toArrow())
    joined = timed.sparkSession.createDataFrame(workflow_by_chain)
    belonging = timed.join(joined, "chain_id", "left").withColumn("workflow_id", sf.coalesce("workflow_id", "chain_id"))
    several = belonging.groupBy("workflow_id").agg(sf.count("*").alias("jobs")).where("jobs > 1").select("workflow_id")
    waits = history.blockers.groupBy("job_id").agg(sf.collect_list("blocked_by_chain_id").alias("waits_for"))
    usual = (
        timed.where(sf.col("is_ended") & (sf.col("run_micros") > 0))
        .groupBy("type_name")
        .agg(percentiles("run_micros", (_SLOW,))[0].alias("usual_micros"))
    )
    return (
        belonging.join(several, "workflow_id", "left_semi")
        .join(waits.withColumnRenamed("job_id", "id"), "id", "left")
        .join(usual, "type_name", "left")
        .withColumn("waits_for", sf.coalesce("waits_for", sf.array().cast("array<string>")))
        .withColumn("is_slow", sf.col("run_micros") > sf.col("usual_micros"))
        .drop("usual_micros", "status", "wait_seconds")
    )


def measured(table: pa.Table) -> pa.Table:
    """Measure one workflow; its jobs and the result are Arrow tables."""
    return pa.Table.from_pylist([measure(table.to_pylist())], schema=_MEASURED)


def measure(jobs: list[dict[str, Any]]) -> dict[str, Any]:
    """Measure the jobs of one workflow."""
    shape = shape_of([Node(**{field.name: job[field.name] for field in fields(Node)}) for job in jobs])
    by_id = {job["id"]: job for job in jobs}
    is_ended = all(job["is_ended"] for job in jobs)
    created_at = min(job["created_at"] for job in jobs)
    ends = [job["ended_at"] for job in jobs if job["ended_at"] is not None]
    wall = (max(ends) - created_at).total_seconds() if ends else None
    critical = sum(by_id[job]["run_micros"] for job in shape.path) / 1e6
    last = max(jobs, key=lambda job: (job["ended_at"] is None, job["ended_at"] or job["created_at"], job["id"]))
    return {
        "workflow_id": jobs[0]["workflow_id"],
        "type_name": last["type_name"],
        "chains": len({job["chain_id"] for job in jobs}),
        "jobs": len(jobs),
        "is_ended": is_ended,
        "created_at": created_at,
        "ended_at": max(ends) if is_ended else None,
        "length": shape.length,
        "width": shape.width,
        "max_parallel": shape.max_parallel,
        "run_seconds": sum(job["run_micros"] for job in jobs) / 1e6,
        "wall_seconds": wall,
        "critical_seconds": critical,
        "critical_share": critical / wall if wall else None,
        "critical_path": list(shape.path),
        "stragglers": [job for job in shape.path if by_id[job]["is_slow"]],
        "is_cyclic": shape.is_cyclic,
    }

"""Chains and blockers as workflows: how long, how wide, which jobs decided when the whole of it was done."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from sa_jobqueue.spark.analytics._expressions import micros, percentiles, seconds
from sa_jobqueue.spark.analytics.attempts import intervals
from sa_jobqueue.spark.analytics.components import DRIVER_EDGES, chain_components
from sa_jobqueue.spark.analytics.graphs import Node, shape_of
from sa_jobqueue.spark.analytics.history import History
from sa_jobqueue.types import ENDED

if TYPE_CHECKING:
    import pyarrow

_MEASURED: Final = (
    "workflow_id string, type_name string, chains int, jobs int, is_ended boolean, created_at timestamp,"
    " ended_at timestamp, length int, width int, max_parallel int, run_seconds double, wall_seconds double,"
    " critical_seconds double, critical_share double, critical_path array<string>, stragglers array<string>,"
    " is_cyclic boolean"
)
DRIVER_JOBS: Final = 100_000
"""Up to so many jobs are measured by the driver, in 4 s and 200 MB: less than Spark's Python workers take to start."""
_ENDED: Final = sorted(status.value for status in ENDED)


def workflows(history: History, *, driver_edges: int = DRIVER_EDGES, driver_jobs: int = DRIVER_JOBS) -> DataFrame:
    """Measure each workflow of two jobs or more: chains that blockers join, directly or through others.

    Shape: `workflow_id` (the smallest id of its chains), `type_name` (of the job that ended last, or else was enqueued
    last), `chains`, `jobs`, `is_ended` (all of them), `created_at` (the first was enqueued), `ended_at` (the last ended;
    null while one is open), `length` (most jobs one after the other), `width` (most jobs with as many before them),
    `max_parallel` (most jobs that ran at one moment, by their last attempts), `run_seconds` (of all attempts of all jobs),
    `wall_seconds` (from the first enqueued to the last ended so far; null when none has), `critical_path` (job ids
    in order), `critical_seconds` (what its attempts took), `critical_share` (of the wall time; what is missing to 1 was
    spent waiting), `stragglers` (jobs on the path that took longer than 95 % of their type), `is_cyclic` (jobs wait for
    each other: they never run).
    The critical path is of the sequences of jobs that each wait for the one before the one whose run times add up to most:
    making any other job faster does not make the whole end sooner, as long as there are workers enough.
    Cost: components as `chain_components` says, which runs when this is called. Lone jobs are left out. Up to `driver_jobs`
    others are measured by the driver, at once; more of them after one shuffle by workflow, each by one task in Python, in
    time linear in its jobs and edges. A workflow must fit into its memory: a million jobs take about 1 GB.
    Source: as `graphs.shape_of`.
    """
    nodes = _nodes(history, driver_edges)
    few = nodes.limit(driver_jobs + 1).toArrow()
    if few.num_rows > driver_jobs:
        return nodes.groupBy("workflow_id").applyInArrow(measured, _MEASURED)
    of_workflow: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for job in few.to_pylist():
        of_workflow[job["workflow_id"]].append(job)
    return nodes.sparkSession.createDataFrame(_table(list(map(measure, of_workflow.values()))))


def critical_paths(measured_workflows: DataFrame, history: History) -> DataFrame:
    """Return the jobs of each critical path, in order, of what `workflows` returned.

    Shape: `workflow_id`, `position` (from 1), `job_id`, `type_name`, `status`, `run_seconds` (of all attempts),
    `wait_seconds` (from when its last attempt was due until it was claimed, null without one), `is_straggler`.
    """
    exploded = measured_workflows.select(
        "workflow_id", "stragglers", sf.posexplode("critical_path").alias("place", "job_id")
    )
    claimed = sf.col("started_at") >= sf.col("scheduled_at")
    jobs = history.jobs.select(
        sf.col("id").alias("job_id"),
        "type_name",
        "status",
        sf.when(claimed, seconds("scheduled_at", "started_at")).alias("wait_seconds"),
    )
    return (
        exploded.join(jobs, "job_id", "left")
        .join(_run_times(history), "job_id", "left")
        .select(
            "workflow_id",
            (sf.col("place") + 1).alias("position"),
            "job_id",
            "type_name",
            "status",
            (sf.coalesce("run_micros", sf.lit(0)) / sf.lit(1e6)).alias("run_seconds"),
            "wait_seconds",
            sf.array_contains("stragglers", sf.col("job_id")).alias("is_straggler"),
        )
    )


def _run_times(history: History) -> DataFrame:
    """Return what all attempts of a job took, of those that ended: `job_id`, `run_micros`."""
    took = sf.greatest(micros("started_at", "ended_at"), sf.lit(0))
    return intervals(history).groupBy("job_id").agg(sf.coalesce(sf.sum(took), sf.lit(0)).alias("run_micros"))


def _nodes(history: History, driver_edges: int) -> DataFrame:
    jobs = history.jobs
    chain_of = jobs.select(sf.col("id").alias("job_id"), sf.col("chain_id").alias("a"))
    edges = history.blockers.join(chain_of, "job_id").select("a", sf.col("blocked_by_chain_id").alias("b"))
    joined = chain_components(edges, driver_edges=driver_edges)
    belonging = jobs.join(joined, "chain_id", "left").withColumn("workflow_id", sf.coalesce("workflow_id", "chain_id"))
    several = belonging.groupBy("workflow_id").agg(sf.count("*").alias("jobs")).where("jobs > 1").select("workflow_id")
    waits = history.blockers.groupBy("job_id").agg(sf.collect_list("blocked_by_chain_id").alias("waits_for"))
    timed = belonging.join(_run_times(history).withColumnRenamed("job_id", "id"), "id", "left")
    ended = sf.col("status").isin(_ENDED)
    usual = (
        timed.where(ended & (sf.col("run_micros") > 0))
        .groupBy("type_name")
        .agg(percentiles("run_micros", (0.95,))[0].alias("usual_micros"))
    )
    claimed = sf.col("started_at") >= sf.col("scheduled_at")
    return (
        timed.join(several, "workflow_id", "left_semi")
        .join(waits.withColumnRenamed("job_id", "id"), "id", "left")
        .join(usual, "type_name", "left")
        .select(
            "workflow_id",
            "id",
            "type_name",
            "chain_id",
            "chain_index",
            "waits_for",
            sf.coalesce("run_micros", sf.lit(0)).alias("run_micros"),
            (sf.col("run_micros") > sf.col("usual_micros")).alias("is_slow"),
            ended.alias("is_ended"),
            "created_at",
            sf.when(claimed, sf.col("started_at")).alias("started_at"),
            sf.col("completed_at").alias("ended_at"),
        )
    )


def measured(table: pyarrow.Table) -> pyarrow.Table:
    """Measure the jobs of one workflow, as Arrow."""
    return _table([measure(table.to_pylist())])


def _table(rows: list[dict[str, Any]]) -> pyarrow.Table:
    import pyarrow as pa

    return pa.Table.from_pylist(rows, schema=pa.schema(_arrow_kinds(pa)))


def measure(jobs: list[dict[str, Any]]) -> dict[str, Any]:
    """Measure the jobs of one workflow."""
    nodes = [
        Node(
            id=job["id"],
            chain_id=job["chain_id"],
            chain_index=job["chain_index"],
            waits_for=tuple(job["waits_for"] or ()),
            run_micros=job["run_micros"],
            started_at=job["started_at"],
            ended_at=job["ended_at"],
        )
        for job in jobs
    ]
    shape = shape_of(nodes)
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


def _arrow_kinds(pa: Any) -> list[tuple[str, Any]]:
    plain: dict[str, Callable[[], Any]] = {
        "string": pa.string,
        "int": pa.int32,
        "boolean": pa.bool_,
        "double": pa.float64,
    }
    of = {name: kind() for name, kind in plain.items()}
    of |= {"timestamp": pa.timestamp("us", tz="UTC"), "array<string>": pa.list_(pa.string())}
    return [(name, of[kind]) for name, kind in (column.split() for column in _MEASURED.split(","))]

"""Every measure equals what plain Python computes from the same rows; a live queue and an archive give the same."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Engine

from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.pipeline.history import DATASETS
from sa_jobqueue.types import AttemptOutcome
from tests.fixtures.histories import AS_OF, Rows, at, sample, write_archive, write_database

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from sa_jobqueue.pipeline.spark.analytics import History


FAILURES = {"failed", "timed_out", "lost"}
Group = dict[tuple[Any, ...], dict[str, Any]]


@pytest.fixture(scope="module")
def rows() -> Rows:
    return sample()


@pytest.fixture(scope="module")
def archive(rows: Rows, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("archive")
    write_archive(rows, path)
    return path


@pytest.fixture(scope="module")
def history(plainly: SparkSession, archive: Path) -> Iterator[History]:
    from sa_jobqueue.pipeline.spark.analytics import History

    with History.archive(plainly, str(archive)).cached() as cached:
        yield cached


def utc(value: Any) -> Any:
    """Return what Spark collected with its instants aware again: it gives them in the machine's time zone."""
    if isinstance(value, datetime):
        return value.astimezone(UTC)
    if isinstance(value, list):
        return [utc(member) for member in value]
    return utc_of(value.asDict()) if hasattr(value, "asDict") else value


def utc_of(row: dict[str, Any]) -> dict[str, Any]:
    return {name: utc(value) for name, value in row.items()}


def collected(frame: DataFrame, *by: str) -> Group:
    """Return rows by their group, approximately comparable."""
    return {key: close(row) for key, row in plain(frame, *by).items()}


def plain(frame: DataFrame, *by: str) -> Group:
    rows = [utc(row) for row in frame.collect()]
    grouped = {tuple(row.pop(name) for name in by): row for row in rows}
    assert len(grouped) == len(rows)
    return grouped


def close(row: dict[str, Any]) -> dict[str, Any]:
    return {name: pytest.approx(value) if isinstance(value, float) else value for name, value in row.items()}


def grouped(rows: Iterable[dict[str, Any]], *by: str) -> dict[tuple[Any, ...], list[dict[str, Any]]]:
    groups = defaultdict(list)
    for row in rows:
        groups[tuple(row[name] for name in by)].append(row)
    return groups


def rank(values: list[float], point: float) -> float | None:
    """Return the smallest value that so large a part of all is not greater than."""
    return sorted(values)[math.ceil(point * len(values)) - 1] if values else None


def lasted(since: datetime | None, until: datetime | None) -> float | None:
    return None if since is None or until is None else (until - since).total_seconds()


def hour(instant: datetime) -> datetime:
    return instant.replace(minute=0, second=0, microsecond=0)


def times(job: dict[str, Any]) -> dict[str, float | None]:
    claimed = job["started_at"] is not None and job["started_at"] >= job["scheduled_at"]
    is_completed = job["status"] == "completed"
    by_worker = is_completed and job["completed_by"] is not None
    return {
        "wait": lasted(job["scheduled_at"], job["started_at"]) if claimed else None,
        "run": lasted(job["started_at"], job["completed_at"]) if claimed and by_worker else None,
        "total": lasted(job["created_at"], job["completed_at"]) if is_completed else None,
    }


def test_percentiles_match_plain_python(history: History, rows: Rows) -> None:
    from sa_jobqueue.pipeline.spark.analytics import latency_percentiles

    every_job = []
    for job in rows.jobs:
        claimed = times(job)["wait"] is not None
        began = job["started_at"] if claimed else job["completed_at"] if job["status"] == "completed" else None
        every_job.append(job | {"hour": hour(began) if began else None})
    for by in (("type_name", "queue"), ("hour",), ()):
        expected = {}
        for key, jobs in grouped(every_job, *by).items():
            for measure in ("wait", "run", "total"):
                values = [value for job in jobs if (value := times(job)[measure]) is not None]
                if values:
                    points: dict[str, Any] = {f"p{point}_seconds": rank(values, point / 100) for point in (50, 90, 95, 99)}
                    summary = {"count": len(values), "mean_seconds": sum(values) / len(values), "max_seconds": max(values)}
                    expected[(*key, measure)] = summary | points
        assert collected(latency_percentiles(history, by), *by, "measure") == expected
    assert expected["run",]["count"] == 77


def test_latencies_are_those_of_the_last_attempt_or_null(history: History, rows: Rows) -> None:
    from sa_jobqueue.pipeline.spark.analytics import latencies

    found = collected(latencies(history), "id")

    def seconds(name: str) -> list[Any]:
        row = found[rows.ids[name],]
        return [row["wait_seconds"], row["run_seconds"], row["total_seconds"]]

    assert seconds("retried") == [5, 2, 307]
    assert seconds("redriven") == [1, 3, 8704]
    assert seconds("waits again") == [None, None, None]
    assert seconds("cancelled unstarted") == [None, None, None]
    assert seconds("cancelled between") == [None, None, None]
    assert seconds("cancelled running") == [1, None, None]
    assert seconds("by hand") == [None, None, 60]
    assert seconds("runs") == [400, None, None]
    assert seconds("blocked") == [None, None, None]


def test_throughput_counts_each_event_in_its_hour(history: History, rows: Rows) -> None:
    from sa_jobqueue.pipeline.spark.analytics import throughput

    type_of = {job["id"]: job["type_name"] for job in rows.jobs}
    expected: dict[tuple[Any, ...], Counter[str]] = defaultdict(Counter)
    for job in rows.jobs:
        expected[hour(job["created_at"]), job["type_name"]]["enqueued"] += 1
        if job["status"] in {"completed", "cancelled"}:
            expected[hour(job["completed_at"]), job["type_name"]][job["status"]] += 1
    for attempt in rows.attempts:
        if attempt["outcome"] in FAILURES:
            expected[hour(attempt["ended_at"]), type_of[attempt["job_id"]]]["failed"] += 1
    for dead_letter in rows.dead_letters:
        expected[hour(dead_letter["died_at"]), dead_letter["type_name"]]["dead"] += 1
    names = ("enqueued", "completed", "cancelled", "failed", "dead")
    found = collected(throughput(history, by=["type_name"]), "bucket_start", "type_name")
    assert found == {key: {name: count[name] for name in names} for key, count in expected.items()}
    days = collected(throughput(history, every=timedelta(days=1)), "bucket_start")
    assert sum(day["enqueued"] for day in days.values()) == len(rows.jobs)


def test_retry_rates_count_jobs_that_were_claimed_again_after_a_failure(history: History, rows: Rows) -> None:
    from sa_jobqueue.pipeline.spark.analytics import retry_rate

    of_job = grouped(rows.attempts, "job_id")
    expected = {}
    for (type_name,), jobs in grouped((job for job in rows.jobs if job["attempt"]), "type_name").items():
        outcomes: Counter[str] = Counter()
        retried = 0
        for job in jobs:
            attempts = of_job.get((job["id"],), [])
            outcomes.update(attempt["outcome"] for attempt in attempts)
            outcomes["completed"] += job["completed_by"] is not None
            retried += any(attempt["outcome"] in FAILURES and attempt["attempt"] < job["attempt"] for attempt in attempts)
        names = ("completed", *(outcome.value for outcome in AttemptOutcome))
        total = outcomes.total()
        expected[type_name,] = {name: outcomes[name] for name in names} | {
            "jobs": len(jobs),
            "attempts": total,
            "retried_jobs": retried,
            "retry_rate": retried / len(jobs),
            "failure_rate": sum(outcomes[name] for name in FAILURES) / total if total else None,
        }
    assert collected(retry_rate(history), "type_name") == expected
    assert expected["charge",]["retried_jobs"] == 1
    assert expected["step",]["retried_jobs"] == 1


def test_error_groups_are_by_stored_fingerprint_with_the_last_as_example(history: History, rows: Rows) -> None:
    from sa_jobqueue.pipeline.spark.analytics import error_groups

    type_of = {job["id"]: job["type_name"] for job in rows.jobs}
    failed = [attempt for attempt in rows.attempts if attempt["error_fingerprint"]]
    expected = {}
    for (fingerprint,), attempts in grouped(failed, "error_fingerprint").items():
        last = max(attempts, key=lambda attempt: (attempt["ended_at"], attempt["job_id"], attempt["attempt"]))
        error = json.loads(last["error"])
        days = Counter(attempt["ended_at"].replace(hour=0, minute=0, second=0, microsecond=0) for attempt in attempts)
        expected[fingerprint,] = {
            "error_type": error["type"],
            "count": len(attempts),
            "jobs": len({attempt["job_id"] for attempt in attempts}),
            "type_names": sorted({type_of[attempt["job_id"]] for attempt in attempts}),
            "share": len(attempts) / len(failed),
            "first_seen": min(attempt["ended_at"] for attempt in attempts),
            "last_seen": last["ended_at"],
            "example_job_id": last["job_id"],
            "example_message": error["message"],
            "example_traceback": error["traceback"],
            "trend": [{"bucket_start": day, "count": count} for day, count in sorted(days.items())],
            "example_type_name": type_of[last["job_id"]],
        }
    assert collected(error_groups(history), "fingerprint") == expected
    assert len(expected["f-ConnectionError",]["trend"]) == 5


def test_dead_letter_ageing_counts_by_age_and_time_to_resolution(history: History, rows: Rows) -> None:
    from sa_jobqueue.pipeline.spark.analytics import dead_letter_ageing

    limits = {
        "unresolved_under_1h": 3600,
        "unresolved_1h_to_1d": 86_400,
        "unresolved_1d_to_7d": 7 * 86_400,
        "unresolved_7d_to_30d": 30 * 86_400,
    }
    for by in (("type_name", "reason"), ()):
        expected = {}
        for key, dead_letters in grouped(rows.dead_letters, *by).items():
            ages = [(AS_OF - letter["died_at"]).total_seconds() for letter in dead_letters if letter["resolution"] is None]
            resolution_seconds = [
                (letter["resolved_at"] - letter["died_at"]).total_seconds()
                for letter in dead_letters
                if letter["resolution"]
            ]
            count_by_bucket = dict.fromkeys(("redriven", "dismissed", *limits, "unresolved_over_30d"), 0)
            count_by_bucket |= Counter(letter["resolution"] for letter in dead_letters if letter["resolution"])
            count_by_bucket |= Counter(
                next((name for name, top in limits.items() if age < top), "unresolved_over_30d") for age in ages
            )
            count_by_bucket |= {"dead_letters": len(dead_letters), "unresolved": len(ages)}
            summary = {
                "oldest_unresolved_seconds": max(ages, default=None),
                "resolution_p50_seconds": rank(resolution_seconds, 0.5),
            }
            expected[key] = count_by_bucket | summary | {"resolution_p95_seconds": rank(resolution_seconds, 0.95)}
        assert collected(dead_letter_ageing(history, by, as_of=AS_OF), *by) == expected
    assert expected[()]["unresolved_1h_to_1d"] == 1
    assert expected[()]["unresolved_1d_to_7d"] == 2


@pytest.mark.parametrize("driver_jobs", [0, 1000], ids=["on the cluster", "by the driver"])
def test_a_diamond_workflow_has_its_critical_path_and_straggler(driver_jobs: int, history: History, rows: Rows) -> None:
    from sa_jobqueue.pipeline.spark.analytics import critical_paths, workflows

    ids = rows.ids
    measured = workflows(history, driver_jobs=driver_jobs).cache()
    found = collected(measured, "workflow_id")
    path = [ids[name] for name in ("a", "b", "b next", "d")]
    assert found == {
        (ids["a"],): {
            "type_name": "report",
            "chains": 4,
            "jobs": 5,
            "is_ended": True,
            "created_at": at(1000),
            "ended_at": at(1060),
            "length": 4,
            "width": 2,
            "max_parallel": 1,
            "run_seconds": 62.0,
            "wall_seconds": 60.0,
            "critical_seconds": 38.0,
            "critical_share": pytest.approx(38 / 60),
            "critical_path": path,
            "stragglers": [ids["b"]],
            "is_cyclic": False,
        },
        (ids["open root"],): {
            "type_name": "save",
            "chains": 1,
            "jobs": 2,
            "is_ended": False,
            "created_at": at(5000),
            "ended_at": None,
            "length": 2,
            "width": 1,
            "max_parallel": 1,
            "run_seconds": 2.0,
            "wall_seconds": 3.0,
            "critical_seconds": 2.0,
            "critical_share": pytest.approx(2 / 3),
            "critical_path": [ids["open root"], ids["open next"]],
            "stragglers": [],
            "is_cyclic": False,
        },
        (ids["never started"],): found[ids["never started"],],
    }
    assert found[ids["never started"],]["wall_seconds"] is None
    steps = sorted(row for row in critical_paths(measured, history).collect() if row.workflow_id == ids["a"])
    assert [(row.position, row.job_id, row.run_seconds, row.wait_seconds, row.is_straggler) for row in steps] == [
        (1, ids["a"], 10.0, 1.0, False),
        (2, ids["b"], 20.0, 1.0, True),
        (3, ids["b next"], 5.0, 1.0, False),
        (4, ids["d"], 3.0, 2.0, False),
    ]
    measured.unpersist()


def test_busy_workers_are_the_attempt_time_per_hour(history: History, rows: Rows) -> None:
    from sa_jobqueue.pipeline.spark.analytics import capacity, workers_needed

    target = timedelta(seconds=2)
    jobs = {job["id"]: job for job in rows.jobs}
    attempts = [{**attempt, "job": jobs[attempt["job_id"]]} for attempt in rows.attempts]
    attempts += [
        {"job": job, "attempt": job["attempt"], "started_at": job["started_at"], "ended_at": job["completed_at"]}
        for job in rows.jobs
        if job["completed_by"] or job["status"] == "running"
    ]
    busy: dict[tuple[Any, ...], float] = defaultdict(float)
    started = defaultdict(list)
    for attempt in attempts:
        begin, end, kind = attempt["started_at"], attempt["ended_at"] or AS_OF, attempt["job"]["type_name"]
        started[hour(begin), kind].append(attempt)
        bucket = hour(begin)
        while bucket <= end:
            inside = min(end, bucket + timedelta(hours=1)) - max(begin, bucket)
            busy[bucket, kind] += inside.total_seconds() / 3600
            bucket += timedelta(hours=1)
    expected = {}
    for key in {key for key, load in busy.items() if load} | set(started):
        runs = [
            taken for duration in started[key] if (taken := lasted(duration["started_at"], duration["ended_at"])) is not None
        ]
        waits = [
            wait
            for attempt in started[key]
            if attempt["attempt"] == attempt["job"]["attempt"] and (wait := times(attempt["job"])["wait"]) is not None
        ]
        mean = sum(runs) / len(runs) if runs else None
        load = max(busy[key], len(started[key]) / 3600 * (mean or 0))
        expected[key] = {
            "started": len(started[key]),
            "arrivals_per_second": pytest.approx(len(started[key]) / 3600),
            "mean_run_seconds": mean,
            "busy_workers": pytest.approx(busy[key]),
            "utilisation": pytest.approx(busy[key] / 4),
            "p95_wait_seconds": rank(waits, 0.95),
            "workers_needed": None if mean is None else workers_needed(load, mean, target_wait=target),
        }
    found = collected(capacity(history, target_wait=target, slots=4, as_of=AS_OF), "bucket_start", "type_name")
    assert found == expected
    assert expected[at(7200), "long"]["busy_workers"] == 1.0  # all of the third hour


def test_workflows_and_capacity_run_no_python_udf(plainly: SparkSession, history: History) -> None:
    from sa_jobqueue.pipeline.spark.analytics import capacity, workflows

    assert "Python" not in workflows(history)._jdf.queryExecution().toString()
    load = capacity(history, every=timedelta(hours=1), target_wait=timedelta(seconds=5), as_of=AS_OF)
    assert "Python" not in load._jdf.queryExecution().executedPlan().toString()
    assert load.where("workers_needed > 0").count() > 0


def test_live_and_archived_history_are_equal_and_their_union_has_no_duplicates(
    spark: SparkSession, database_url: str, engine: Engine, rows: Rows, history: History
) -> None:
    from sa_jobqueue.pipeline.spark.analytics import History, latency_percentiles

    write_database(rows, engine)
    live = History.live(spark, database_url)
    archived = {name: sorted(getattr(history, name).collect(), key=str) for name in DATASETS}
    with live.cached() as read:
        for name, expected in archived.items():
            assert expected
            assert [(*row,) for row in sorted(getattr(read, name).collect(), key=str)] == [(*row,) for row in expected]
        by = ("type_name", "measure")
        assert plain(latency_percentiles(read), *by) == collected(latency_percentiles(history), *by)

        # An archive whose rows are partly deleted from the queue, and changed there where they are not.
        job = rows.ids["retried"]
        archived_history = History(
            read.jobs.where(f"id >= '{job}'").replace("resize", "changed", ["type_name"]),
            read.attempts.where(f"job_id >= '{job}'"),
            read.dead_letters.limit(3),
            read.blockers.limit(1),
        )
        both = archived_history.union(history)
        assert both.jobs.select("id").distinct().count() == both.jobs.count() == len(rows.jobs)
        assert {row.type_name for row in both.jobs.where(f"id = '{job}'").collect()} == {"changed"}
        for name in ("attempts", "dead_letters", "blockers"):
            assert getattr(both, name).count() == len(rows.of(name))


def test_filtering_a_history_keeps_what_ended_within_it(history: History, rows: Rows) -> None:
    part = history.where(since=at(1000), until=at(1040), types=["step", "save"], queues=["default"])
    assert {row.id for row in part.jobs.collect()} == {rows.ids["b"], rows.ids["b next"]}
    assert [(row.job_id, row.outcome) for row in part.attempts.collect()] == [(rows.ids["c"], "failed")]
    assert [row.job_id for row in part.blockers.collect()] == [rows.ids["b"]]
    dead_letters = history.where(until=at(400), types=["charge"]).dead_letters.collect()
    assert {row.reason for row in dead_letters} == {"exhausted", "discarded"}
    assert all(utc(row.died_at) < at(400) for row in dead_letters)
    with pytest.raises(InvalidOptionError, match="since: must be an aware datetime"):
        history.where(since=datetime(2026, 1, 1))


def test_no_history_has_empty_measures(plainly: SparkSession, tmp_path: Path) -> None:
    from sa_jobqueue.pipeline.spark import analytics

    with pytest.raises(analytics.NoHistoryError, match="there is no archive at"):
        analytics.History.archive(plainly, str(tmp_path / "nowhere"))
    rows = Rows()
    rows.job("one", "pending")
    write_archive(rows, tmp_path)
    # Only jobs have a folder; and only what ended before anything did is looked at.
    nothing = analytics.History.archive(plainly, str(tmp_path)).where(until=at(-1))
    measures: list[Callable[[History], DataFrame]] = [
        lambda history: analytics.latency_percentiles(history, ()),
        analytics.throughput,
        lambda history: analytics.retry_rate(history, ()),
        analytics.error_groups,
        lambda history: analytics.dead_letter_ageing(history, ()),
        lambda history: analytics.critical_paths(analytics.workflows(history), history),
        analytics.capacity,
    ]
    for measure in measures:
        assert measure(nothing).collect() == []


def test_invalid_analytics_arguments_are_refused_by_name(history: History) -> None:
    from sa_jobqueue.pipeline.spark import analytics

    refused: list[tuple[str, Callable[[], object]]] = [
        ("by: must be different names out of type_name", lambda: analytics.latency_percentiles(history, ["input"])),
        ("by: must be different", lambda: analytics.latency_percentiles(history, "type_name")),
        ("every: must be a timedelta above zero", lambda: analytics.throughput(history, every=timedelta(0))),
        ("as_of: must be an aware datetime", lambda: analytics.dead_letter_ageing(history, as_of=datetime(2026, 1, 1))),
        ("slots: must be at least 1", lambda: analytics.capacity(history, slots=0)),
        ("quantile: must be above 0", lambda: analytics.capacity(history, quantile=1)),
        ("target_wait: must be a timedelta", lambda: analytics.capacity(history, target_wait=timedelta(-1))),
        (
            "jobs: must have the column 'id'",
            lambda: analytics.History(history.attempts, history.attempts, history.dead_letters, history.blockers),
        ),
    ]
    for message, call in refused:
        with pytest.raises(InvalidOptionError, match=message):
            call()


def test_earlier_days_of_an_archive_are_not_read(plainly: SparkSession, rows: Rows, tmp_path: Path) -> None:
    from sa_jobqueue.pipeline.spark.analytics import History

    write_archive(rows, tmp_path)
    old = tmp_path / "jobs" / "completed_date=2026-01-01"
    old.mkdir()
    (old / "part-00000.parquet").write_bytes(b"it would be an error to read this")
    recent = History.archive(plainly, str(tmp_path), since=at(1000)).where(since=at(1000))
    assert {row.id for row in recent.jobs.collect()} == {
        row["id"] for row in rows.jobs if (row.get("completed_at") or row["created_at"]) >= at(1000)
    }
    empty = History.archive(plainly, str(tmp_path), since=at(0) + timedelta(days=400))
    both = empty.union(recent).where(since=at(1000))
    assert both.jobs.count() == recent.jobs.count()
    with pytest.raises(InvalidOptionError, match="since: must be an aware datetime"):
        History.archive(plainly, str(tmp_path), since=datetime(2026, 1, 1))
    plan = recent.jobs._jdf.queryExecution().toString()
    assert "PartitionFilters: [(isnull(completed_date" in plan

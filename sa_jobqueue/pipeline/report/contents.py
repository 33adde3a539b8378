"""The contents of a report: numbers and rows, computed by Spark, as plain Python objects."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from sa_jobqueue.display.redaction import REDACTED, is_redacted, is_redacting
from sa_jobqueue.types import ENDED, JobStatus

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sa_jobqueue.pipeline.spark.analytics import History

Row = dict[str, Any]

MAX_ROWS: Final = 50
"""Maximum number of rows of a table; the rest are counted."""
SLOWEST: Final = 10
"""Number of workflows whose critical path is included."""
_BUCKETS: Final = (
    *(timedelta(minutes=minutes) for minutes in (1, 5, 15)),
    *(timedelta(hours=hours) for hours in (1, 6)),
    *(timedelta(days=days) for days in (1, 7)),
)
_MOST_BUCKETS: Final = 170
_HOURLY: Final = timedelta(days=62)
_BRIEF: Final = timedelta(hours=3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """The contents of a report. Durations are in seconds, instants in UTC; the columns are those of the analytics."""

    sources: tuple[str, ...]
    """Paths and URLs of the history, without passwords."""
    generated_at: datetime
    since: datetime | None
    until: datetime | None
    queues: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    first: datetime | None
    """Time of the first event; None for an empty history."""
    last: datetime | None
    every: timedelta = timedelta(hours=1)
    """Length of a time bucket."""
    capacity_every: timedelta = timedelta(hours=1)
    """Length of a time bucket of `busy` and `capacity`."""
    target_wait: timedelta = timedelta(seconds=1)
    summary: Row = field(default_factory=dict)
    throughput: list[Row] = field(default_factory=list)
    """In order of time, without empty buckets."""
    latency: list[Row] = field(default_factory=list)
    """By `type_name` and `measure`; the type with the longest total run time first."""
    retries: list[Row] = field(default_factory=list)
    errors: list[Row] = field(default_factory=list)
    """Most frequent first."""
    dead_letters: list[Row] = field(default_factory=list)
    workflows: list[Row] = field(default_factory=list)
    """Slowest first, each with `steps`: the jobs of its critical path."""
    workflow_count: int = 0
    busy: list[Row] = field(default_factory=list)
    """Busy workers by `bucket_start` and `type_name`."""
    capacity: list[Row] = field(default_factory=list)
    """One row per type: its busiest bucket, and the number of workers needed then."""

    @property
    def is_empty(self) -> bool:
        """Whether the history is empty."""
        return not (self.summary.get("jobs") or self.errors or self.dead_letters or self.throughput)

    def document(self) -> Row:
        """Return the contents as a dict, for JSON."""
        document = asdict(self)
        del document["busy"]
        for name in ("every", "capacity_every", "target_wait"):
            seconds = document.pop(name).total_seconds()
            document["target_wait_seconds" if name == "target_wait" else name.replace("every", "bucket_seconds")] = seconds
        return document


def collect(
    history: History,
    *,
    sources: Sequence[str],
    since: datetime | None = None,
    until: datetime | None = None,
    queues: Sequence[str] = (),
    types: Sequence[str] = (),
    target_wait: timedelta = timedelta(seconds=1),
    slots: int | None = None,
    now: datetime | None = None,
) -> Contents:
    """Compute a report. The history is read once.

    `sources` are shown unchanged: they must not contain a password. `since` to `slots`: as in `History.where` and
    `capacity`. `now`: the reference for ages and for the run time of running jobs; by default this machine's clock. For
    job types in SA_JOBQUEUE_REDACT only the class of an error is included.
    Raises: InvalidOptionError if an option is out of range.
    """
    from sa_jobqueue.pipeline.spark import analytics

    now = now or datetime.now(UTC)
    part = history.where(since=since, until=until, queues=queues, types=types)

    with part.cached() as cached:
        first, last = _span(cached)
        common: Row = {"sources": tuple(sources), "generated_at": now, "since": since, "until": until}
        common |= {"queues": tuple(queues), "types": tuple(types), "first": first, "last": last, "target_wait": target_wait}
        every = _width(first, last)
        capacity_every = _capacity_width(every, first, last)
        measured = analytics.workflows(cached).persist()
        try:
            slowest = _slowest(measured, cached)
            workflow_count = measured.count()
        finally:
            measured.unpersist()
        latency = _rows(analytics.latency_percentiles(cached, ["type_name"]))
        retries = _rows(analytics.retry_rate(cached))
        dead_letters = _rows(analytics.dead_letter_ageing(cached, as_of=now))
        measured_load = analytics.capacity(
            cached, every=capacity_every, target_wait=target_wait, slots=slots, as_of=min(now, until or now)
        )
        busy = _rows(measured_load)
        summary = _summary(cached, retries, dead_letters, now)
        throughput = _rows(analytics.throughput(cached, every=every))
        errors = _rows(analytics.error_groups(cached, every=capacity_every))
        return Contents(
            **common,
            every=every,
            capacity_every=capacity_every,
            summary=summary,
            throughput=sorted(throughput, key=lambda row: row["bucket_start"]),
            latency=_longest_first(latency),
            retries=sorted(retries, key=lambda row: (-row["retry_rate"], -row["jobs"], row["type_name"] or "")),
            errors=sorted(map(_as_shown, errors), key=lambda row: (-row["count"], row["fingerprint"])),
            dead_letters=sorted(
                dead_letters, key=lambda row: (-row["unresolved"], -row["dead_letters"], row["type_name"], row["reason"])
            ),
            workflows=slowest,
            workflow_count=workflow_count,
            busy=sorted(busy, key=lambda row: (row["bucket_start"], row["type_name"] or "")),
            capacity=_busiest(busy, first, last, capacity_every),
        )


def _rows(frame: DataFrame) -> list[Row]:
    """Return a DataFrame's rows as plain Python, with aware datetimes in UTC."""
    return [_plain(row) for row in frame.collect()]


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC)
    if hasattr(value, "asDict"):
        return {name: _plain(one) for name, one in value.asDict().items()}
    return [_plain(one) for one in value] if isinstance(value, list) else value


def _as_shown(group: Row) -> Row:
    """Return a group of errors without its example, if its job type is redacted or unknown."""
    if not (group["example_message"] or group["example_traceback"]):
        return group
    kind = group["example_type_name"]
    if not (is_redacted(kind) if kind else is_redacting()):
        return group
    return group | {"example_message": REDACTED, "example_traceback": None}


def _span(history: History) -> tuple[datetime | None, datetime | None]:
    from pyspark.sql import functions as sf

    instants = [
        history.jobs.select(sf.min("created_at"), sf.greatest(sf.max("created_at"), sf.max("completed_at"))),
        history.attempts.select(sf.min("ended_at"), sf.max("ended_at")),
        history.dead_letters.select(sf.min("died_at"), sf.max("died_at")),
    ]
    found = instants[0].unionAll(instants[1]).unionAll(instants[2]).toDF("first", "last")
    [row] = _rows(found.select(sf.min("first").alias("first"), sf.max("last").alias("last")))
    return row["first"], row["last"]


def _width(first: datetime | None, last: datetime | None) -> timedelta:
    """Return the length of a time bucket that fits a plot."""
    if first is None or last is None:
        return timedelta(hours=1)
    return next((width for width in _BUCKETS if (last - first) / width <= _MOST_BUCKETS), _BUCKETS[-1])


def _capacity_width(every: timedelta, first: datetime | None, last: datetime | None) -> timedelta:
    """Return the length of a bucket of the workers' load: an hour, between a short peak and a long mean."""
    hour = timedelta(hours=1)
    if first is None or last is None or last - first < _BRIEF:
        return min(every, hour)  # in a history of minutes, an hour would be mostly empty
    return hour if last - first <= _HOURLY else max(every, hour)


def _summary(history: History, retries: list[Row], dead_letters: list[Row], now: datetime) -> Row:
    from sa_jobqueue.pipeline.spark import analytics

    by_status = {row["status"]: row["count"] for row in _rows(history.jobs.groupBy("status").count())}
    found: Row = {"jobs": sum(by_status.values())}
    found |= {status.value: by_status.get(status.value, 0) for status in JobStatus}
    found["open"] = sum(count for status, count in by_status.items() if status not in ENDED)
    attempts = sum(row["attempts"] for row in retries)
    failures = sum(row[name] for row in retries for name in ("failed", "timed_out", "lost"))
    claimed = sum(row["jobs"] for row in retries)
    retried = sum(row["retried_jobs"] for row in retries)
    found |= {
        "attempts": attempts,
        "failure_rate": failures / attempts if attempts else None,
        "retry_rate": retried / claimed if claimed else None,
        "unresolved_dead_letters": sum(row["unresolved"] for row in dead_letters),
        "oldest_unresolved_seconds": max((row["oldest_unresolved_seconds"] or 0 for row in dead_letters), default=None)
        or None,
    }
    of_all = {row["measure"]: row for row in _rows(analytics.latency_percentiles(history, ()))}
    for measure in ("wait", "run", "total"):
        for point in ("p50_seconds", "p95_seconds"):
            found[f"{measure}_{point}"] = of_all.get(measure, {}).get(point)
    return found


def _longest_first(latency: list[Row]) -> list[Row]:
    spent: dict[str, float] = defaultdict(float)
    for row in latency:
        if row["measure"] == "run":
            spent[row["type_name"]] += row["mean_seconds"] * row["count"]
    places = {"wait": 0, "run": 1, "total": 2}
    return sorted(latency, key=lambda row: (-spent[row["type_name"]], row["type_name"] or "", places[row["measure"]]))


def _slowest(measured: DataFrame, history: History) -> list[Row]:
    from pyspark.sql import functions as sf

    from sa_jobqueue.pipeline.spark.analytics import critical_paths

    ended = measured.where("wall_seconds IS NOT NULL")
    slowest = ended.orderBy(sf.desc("wall_seconds"), "workflow_id").limit(SLOWEST)
    found = _rows(slowest)
    steps: dict[str, list[Row]] = defaultdict(list)
    # Only the rows that are shown: the path of a long chain may have thousands of jobs.
    shown = slowest.withColumn("critical_path", sf.slice("critical_path", 1, MAX_ROWS))
    for step in _rows(critical_paths(shown, history)) if found else []:
        steps[step["workflow_id"]].append(step)
    for row in found:
        row["steps"] = sorted(steps[row["workflow_id"]], key=lambda step: int(step["position"]))
    return sorted(found, key=lambda row: (-row["wall_seconds"], row["workflow_id"]))


def _busiest(busy: list[Row], first: datetime | None, last: datetime | None, every: timedelta) -> list[Row]:
    """Return, for each type, the bucket that needs most workers, and the average need."""
    if first is None or last is None:
        return []
    by_type: dict[str, list[Row]] = defaultdict(list)
    for row in busy:
        by_type[row["type_name"]].append(row)
    begin = min((row["bucket_start"] for row in busy), default=first)
    end = max((row["bucket_start"] + every for row in busy), default=last)
    buckets = max(1, (end - begin) // every)
    found = []
    for name, rows in by_type.items():
        peak = max(rows, key=lambda row: (row["workers_needed"] or 0, row["busy_workers"], row["bucket_start"]))
        waits = [row["p95_wait_seconds"] for row in rows if row["p95_wait_seconds"] is not None]
        found.append(
            {
                "type_name": name,
                "started": sum(row["started"] for row in rows),
                "mean_busy_workers": sum(row["busy_workers"] for row in rows) / buckets,
                "peak_start": peak["bucket_start"],
                "peak_busy_workers": peak["busy_workers"],
                "peak_arrivals_per_second": peak["arrivals_per_second"],
                "peak_mean_run_seconds": peak["mean_run_seconds"],
                "peak_utilisation": peak["utilisation"],
                "worst_p95_wait_seconds": max(waits, default=None),
                "workers_needed": peak["workers_needed"],
            }
        )
    return sorted(found, key=lambda row: (-(row["workers_needed"] or 0), -row["mean_busy_workers"], row["type_name"] or ""))

"""Every number about speed, time or connections in the pages has a source, and the pages state its value.

A number comes from the code, from a test, or from docs/benchmarks.md or the page of another project, to which its sentence
then links. The rest are amounts of the reader's work, such as in an example.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from sa_jobqueue.db.connections import OWN_CONNECTIONS
from sa_jobqueue.observe.health.thresholds import Thresholds
from sa_jobqueue.operations import send_event
from sa_jobqueue.operations.wakeups import LOOK_AGAIN_AFTER
from sa_jobqueue.policies.retry import Backoff
from sa_jobqueue.rehearsal import rehearse
from sa_jobqueue.worker import WorkerOptions
from sa_jobqueue.worker.background.controls import READ_EVERY_ALONE
from sa_jobqueue.worker.background.heartbeat import IDLE_MOST
from sa_jobqueue.worker.claim.arrivals import CATCH_UP_EVERY
from sa_jobqueue.worker.component import RESTART
from sa_jobqueue.worker.quarantine import PAUSES
from sa_jobqueue.worker.run.calls import PAUSES as CONNECTION_PAUSES
from tests.contracts.quantities import QUANTITIES, SPEEDS, Quantity, quantities

ROOT: Final = Path(__file__).parents[2]
BENCHMARKS: Final = ROOT / "docs/benchmarks.md"
PAGES: Final = [page for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))) if page != BENCHMARKS]
OPTIONS: Final = WorkerOptions()
HEARTBEAT_TIMEOUT: Final = OPTIONS.heartbeat_timeout.total_seconds()
HEARTBEAT_INTERVAL: Final = OPTIONS.heartbeat_interval.total_seconds()
POLL_INTERVAL: Final = OPTIONS.poll_interval.total_seconds()
SHUTDOWN: Final = OPTIONS.shutdown_timeout.total_seconds()
CANCEL: Final = OPTIONS.cancel_timeout.total_seconds()
RESCUED: Final = HEARTBEAT_TIMEOUT + HEARTBEAT_INTERVAL
RESCUED_BY_IDLE: Final = HEARTBEAT_TIMEOUT + IDLE_MOST
STOPS_ITSELF: Final = HEARTBEAT_TIMEOUT - HEARTBEAT_INTERVAL
RECONNECTED: Final = RESTART.cap.total_seconds()
LOOK_AGAIN: Final = LOOK_AGAIN_AFTER.total_seconds()
THRESHOLDS: Final = Thresholds()
PLANNED_PER_SECOND: Final = 1_000
"""Jobs a second to plan with: advice, of which the default of a threshold is twice."""
REHEARSAL: Final = {name: option.default for name, option in inspect.signature(rehearse).parameters.items()}
EVENT_KEPT: Final = inspect.signature(send_event).parameters["keep"].default
FIRST_WAITS: Final = [PAUSES(number, ValueError()) for number in range(1, 6)]
AMOUNT: Final = ""
"""Source of what measures nothing of the library: an amount of the reader's work, a date, a policy."""

STATED: Final[dict[str, list[str]]] = {
    "README.md": [f"about {PLANNED_PER_SECOND:,} jobs a second"],
    "docs/explanation/claiming.md": [
        f"catches up every {CATCH_UP_EVERY * 1000:g} ms",
        f"more than {LOOK_AGAIN * 1000:g} ms after",
    ],
    "docs/explanation/comparison.md": [
        f"stopped for {HEARTBEAT_TIMEOUT:g} s",
        f"up to {PLANNED_PER_SECOND:,} jobs a second",
    ],
    "docs/explanation/leases-and-fencing.md": [
        f"`heartbeat_interval` ({HEARTBEAT_INTERVAL:g} s)",
        f"`heartbeat_timeout` ({HEARTBEAT_TIMEOUT:g} s)",
        f"attempts {STOPS_ITSELF:g} s after",
    ],
    "docs/guides/cost-to-your-database.md": [
        f"`heartbeat_interval` ({HEARTBEAT_INTERVAL:g} s)",
        f"but every {IDLE_MOST:g} s at least",
        f"| {IDLE_MOST:g} s instead of `poll_interval` ({POLL_INTERVAL:g} s) |",
        f"| jobs of a worker that dies | {RESCUED_BY_IDLE:g} s instead of {RESCUED:g} s |",
        f"a changed setting | {IDLE_MOST:g} s |",
        f"at most `{OWN_CONNECTIONS} + concurrency`",
    ],
    "docs/guides/cpu-bound-handlers.md": [f"`--cancel-timeout` ({CANCEL:g} s)"],
    "docs/guides/faq.md": [f"up to {PLANNED_PER_SECOND:,} jobs a second"],
    "docs/guides/frameworks.md": [f"`shutdown_timeout` ({SHUTDOWN:g} s)"],
    "docs/guides/handlers.md": [f"`cancel_timeout` ({CANCEL:g} s)"],
    "docs/guides/monitoring.md": [
        f"{THRESHOLDS.claim_age_warning.seconds / 60:g} min, {THRESHOLDS.claim_age_critical.seconds / 60:g} min |",
        f"| `long_running` | {THRESHOLDS.long_running.seconds / 3600:g} h |",
        f"| `awaiting_event` | {THRESHOLDS.awaiting_event.days} d |",
        f"| {THRESHOLDS.dead_letters_hour_critical:g} within an hour;",
        f"{THRESHOLDS.horizon_warning.seconds / 60:g} min, {THRESHOLDS.horizon_critical.seconds / 3600:g} h |",
        f"| {THRESHOLDS.outgrown_per_second:,.0f} and 200 GiB |",
        "the default is twice the [rate to plan with]",
    ],
    "docs/guides/poolers-and-failover.md": [f"(`poll_interval`, {POLL_INTERVAL:g} s)"],
    "docs/guides/queues.md": [
        f"(#pausing) within {IDLE_MOST:g} s",
        f"of the commit; {HEARTBEAT_INTERVAL:g} s where",
        f"up to {IDLE_MOST:g} s if it has long been idle",
        f"a pooler) | within {READ_EVERY_ALONE:g} s |",
    ],
    "docs/guides/rehearsal.md": [f"- {REHEARSAL['timeout'].seconds} seconds, or a lock that is held for one second"],
    "docs/guides/reliability.md": [
        f"at most {SHUTDOWN:g} s (`--shutdown-timeout`)",
        f"at most {RESCUED:g} s (`heartbeat_timeout`",
        f"`heartbeat_timeout` {HEARTBEAT_TIMEOUT:g} s",
        f"`heartbeat_interval` {HEARTBEAT_INTERVAL:g} s",
        f"or {RESCUED_BY_IDLE:g} s if all workers have [long been idle]",
        f"its attempts after {STOPS_ITSELF:g} s",
        f"reconnect within {RECONNECTED:g} s; if it is back within {STOPS_ITSELF:g} s",
        f"continues within {RECONNECTED:g} s after there is space",
        f"{', '.join(f'{wait.seconds} s' for wait in FIRST_WAITS[:-1])}, then every {FIRST_WAITS[-1].seconds // 60} minutes",
    ],
    "docs/guides/retries.md": [f"and {CONNECTION_PAUSES[-1]:g} s before the attempt fails"],
    "docs/guides/wait-for-events.md": [f"kept for {EVENT_KEPT.days} days"],
    "docs/guides/why-is-it-not-running.md": [f"starts within {POLL_INTERVAL:g} s"],
    "docs/guides/workers-in-production.md": [
        f"`--shutdown-timeout` ({SHUTDOWN:g} s)",
        f"at most `{OWN_CONNECTIONS} + concurrency`",
        f"up to [{PLANNED_PER_SECOND:,} jobs a second]",
    ],
    "examples/deploy/compose.yaml": [f"at most `{OWN_CONNECTIONS} + concurrency`"],
    "docs/benchmarks.md": [f"up to {PLANNED_PER_SECOND:,} jobs a second"],
}
"""By page: words with numbers, made from the code's."""

SOURCES: Final[dict[str, dict[str, str]]] = {
    "contributing/how-it-is-tested.md": {
        "93 % of 1,543 changes": "contributing/releasing.md: 93 % of 1,543 changes",
        "about 15 % where jobs wait": "docs/benchmarks.md: python -m benchmarks simulate",
    },
    "docs/explanation/claiming.md": {
        "6 times in the first 0.3 s": "tests/claiming/test_idleness.py: assert len(polls) <= 6",
        "Above about 125 notified jobs a second": "sa_jobqueue/worker/claim/idleness.py: _INTERVAL: Final = 0.004",
        "every 5 to 80 ms": "sa_jobqueue/worker/claim/idleness.py: _FIRST_POLL: Final = 0.005",
    },
    "docs/explanation/comparison.md": {"Jobs of a few milliseconds that may be lost": AMOUNT},
    "docs/explanation/stability.md": {"for at least six months": AMOUNT},
    "docs/guides/README.md": {"a job in ten minutes": AMOUNT, "or ten a second": AMOUNT},
    "docs/guides/analytics.md": {"For the last 24 hours": AMOUNT, "for 95 % of the jobs": AMOUNT},
    "docs/guides/completing-without-a-worker.md": {"is due in three days": AMOUNT},
    "docs/guides/cost-to-your-database.md": {
        "after four seconds (two cores, November 2026)": "docs/guides/cost-to-your-database.md: --scenario neighbour",
    },
    "docs/guides/cron.md": {
        "`grace` (one minute)": "sa_jobqueue/registry/schedules.py: grace: timedelta = timedelta(minutes=1)",
    },
    "docs/guides/dashboard.md": {"charts of more than a day": AMOUNT},
    "docs/guides/deduplication.md": {
        "ten changes in a minute": AMOUNT,
        "at most one job per hour": AMOUNT,
        "run after a minute without further calls, after an hour at the latest": AMOUNT,
    },
    "docs/guides/deployment.md": {
        "`--shutdown-timeout` plus 25 seconds": "tests/contracts/test_deployment.py: RELEASING = timedelta(seconds=25)",
        "30 seconds after SIGTERM": "tests/contracts/test_deployment.py: # Heroku kills after 30 s",
    },
    "docs/guides/enqueueing-with-spark.md": {
        "a million rows, for a day": "sa_jobqueue/pipeline/operations/bulk.py: HASHES_KEPT: Final = timedelta(hours=24)",
        "up to two minutes for a database": "sa_jobqueue/pipeline/spark/writing.py: PATIENCE: Final = 120.0",
        "warns of them for a day": "sa_jobqueue/pipeline/operations/bulk.py: LEFT_OVER: Final = timedelta(hours=24)",
    },
    "docs/guides/limits.md": {
        "allows ten calls a second": AMOUNT,
        "accepts ten calls a second, in bursts of five, and three connections": AMOUNT,
        "100 calls per minute on average | 100 | 100, the default: up to 200 in one minute": AMOUNT,
    },
    "docs/guides/monitoring.md": {
        "ended in ten minutes": "sa_jobqueue/observe/health/measuring.py: GROWTH: Final = timedelta(minutes=10)",
        "to half of it": AMOUNT,
    },
    "docs/guides/on-call.md": {
        "within ten minutes": "sa_jobqueue/observe/health/measuring.py: GROWTH: Final = timedelta(minutes=10)",
        "for two hours": "sa_jobqueue/observe/health/thresholds.py: bulk_unfinished: timedelta = timedelta(hours=2)",
        "more than a minute": "sa_jobqueue/observe/health/findings.py: _CLOCKS_DIFFER: Final = timedelta(minutes=1)",
        "stuck for five minutes": "sa_jobqueue/observe/probes.py: DEFAULT_LIMIT: Final = timedelta(minutes=5)",
    },
    "docs/guides/orchestrators.md": {"rows of a day": AMOUNT},
    "docs/guides/poolers-and-failover.md": {
        "it opens one connection there": "tests/behaviour/test_poolers.py: test_a_worker_behind_a_pooler_listens",
    },
    "docs/guides/priorities.md": {
        "`timeout=` (one second)": "sa_jobqueue/registry/selectors.py: timeout: timedelta = timedelta(seconds=1)",
    },
    "docs/guides/quickstart.md": {"your first job in five minutes": AMOUNT},
    "docs/guides/reading-with-spark.md": {
        "uses one connection": "tests/spark/test_reading.py: def test_an_abandoned_read_leaves_no_connection",
    },
    "docs/guides/recipes.md": {"at most an hour": "examples/webhooks.py: min(int(seconds), 3600)", "leave 10 %": AMOUNT},
    "docs/guides/rehearsal.md": {
        "held for one second": "sa_jobqueue/rehearsal.py: lock_timeout: timedelta = timedelta(seconds=1)",
    },
    "docs/guides/reliability.md": {
        "future within a minute": "tests/behaviour/test_clocks_and_clusters.py: test_jobs_of_a_dead_worker_with_a_future",
        "within six minutes": "tests/behaviour/test_clocks_and_clusters.py: test_a_schedule_advanced_by_a_clock_ahead",
    },
    "docs/guides/retention.md": {"Thirty days are": AMOUNT},
    "docs/guides/retries.md": {
        "up to one second, then up to 2, 4, 8 seconds": "tests/contracts/test_numbers.py: def test_the_table_of_waits",
        "never more than an hour": "tests/contracts/test_numbers.py: def test_the_table_of_waits",
        "about four hours": "tests/contracts/test_numbers.py: def test_the_table_of_waits",
    },
    "docs/guides/testing.md": {"back by two hours": AMOUNT},
    "docs/guides/upgrading.md": {
        "at most one second for each table lock": "sa_jobqueue/migrations/locking.py: WAIT: Final = timedelta(seconds=1)",
        "for two minutes (`--patience`)": "sa_jobqueue/migrations/locking.py: PATIENCE: Final = timedelta(minutes=2)",
    },
    "docs/guides/why-is-it-not-running.md": {
        "each statement 3 s (`--timeout`)": "sa_jobqueue/cli/_options.py: default=timedelta(seconds=3)",
    },
    "docs/guides/workers-in-production.md": {
        "`--shutdown-timeout` plus 25 s": "tests/contracts/test_deployment.py: RELEASING = timedelta(seconds=25)",
        "have five more seconds": "sa_jobqueue/worker/options.py: cancel_timeout: timedelta = timedelta(seconds=5)",
        "`--watchdog` (five minutes": "sa_jobqueue/observe/probes.py: DEFAULT_LIMIT: Final = timedelta(minutes=5)",
        "50 jobs a second of 4 s each": AMOUNT,
        "209 slots start 95 % of them within a second": AMOUNT,
        "less than a few milliseconds": AMOUNT,
    },
    "docs/guides/workers-on-executors.md": {
        "(30 seconds)": "sa_jobqueue/pipeline/spark/workers.py: idle_exit: timedelta = timedelta(seconds=30)",
        "(10 minutes)": "sa_jobqueue/pipeline/spark/workers.py: max_runtime: timedelta = timedelta(minutes=10)",
    },
    "docs/reference/analytics.md": {"slower than 95 % of their type": AMOUNT},
    "docs/reference/integrations.md": {"half of `limit`": "sa_jobqueue/observe/probes.py: (limit or DEFAULT_LIMIT) / 2"},
    "docs/reference/operations.md": {"a tenth of the time each": AMOUNT},
    "docs/tutorial.md": {"takes half an hour": AMOUNT},
}
"""By page: words with a number, each with its source, a file and a part of it."""


def text_of(page: str) -> str:
    return " ".join((ROOT / page).read_text(encoding="utf-8").split())


def unsourced(page: str, text: str, pattern: re.Pattern[str] = QUANTITIES) -> Iterator[Quantity]:
    """Yield the quantities of a page's text that neither a table above nor a link in their sentence gives a source."""
    known = [*STATED.get(page, []), *SOURCES.get(page, {})]
    for quantity in quantities(text, pattern):
        places = [(found.start(), found.end()) for words in known for found in re.finditer(re.escape(words), quantity.block)]
        is_known = any(start <= quantity.place.start and quantity.place.stop <= end for start, end in places)
        is_linked = "benchmarks.md" in quantity.sentence or "https://" in quantity.sentence
        is_of_table = quantity.block.startswith("|") and any(words in quantity.sentence for words in SOURCES.get(page, {}))
        if not (is_known or is_linked or is_of_table):
            yield quantity


@pytest.mark.parametrize("page", [str(page.relative_to(ROOT)) for page in PAGES])
def test_a_number_about_speed_time_or_connections_has_a_source(page: str) -> None:
    is_generated = page.startswith("docs/reference/")  # its times are bounds of parameters, checked where they are declared
    pattern = SPEEDS if is_generated else QUANTITIES
    lacking = [
        f"{quantity.words!r} in {quantity.sentence!r}" for quantity in unsourced(page, (ROOT / page).read_text(), pattern)
    ]
    assert lacking == [], "link the sentence to docs/benchmarks.md, or name the source here"


@pytest.mark.parametrize(
    "sentence",
    [
        "A claim takes about five milliseconds.",
        "It is three times faster than Celery.",
        "A job starts within a third of a second.",
        "Enqueueing costs half of that.",
        "A quarter of the jobs wait.",
        "A worker needs a dozen database connections.",
        "This is twice as fast.",
        "It completes thousands of jobs a second.",
        "It needs 40 % less memory.",
        "It doubles the throughput.",
        "A child takes a second to start.",
        "| latency | 12 ms |",
        "- Commits are 1.5x slower.",
    ],
)
def test_a_number_without_a_source_is_found(sentence: str) -> None:
    pages = [f"# A page\n\nIts first paragraph.\n\n{sentence}\n", f"{sentence}\n\nSee [benchmarks](../benchmarks.md).\n"]
    assert [len([*unsourced("docs/concepts.md", page)]) > 0 for page in pages] == [True, True]


def test_an_ordinal_is_no_time() -> None:
    assert [*unsourced("docs/concepts.md", "Start it in a second terminal. A second signal ends it.")] == []


@pytest.mark.parametrize("page", STATED)
def test_a_page_states_the_numbers_of_the_code(page: str) -> None:
    text = text_of(page)
    assert [words for words in STATED[page] if words not in text] == []


@pytest.mark.parametrize("page", SOURCES)
def test_a_page_and_the_sources_of_its_numbers_agree(page: str) -> None:
    text = text_of(page)
    assert [words for words in SOURCES[page] if words not in text] == []
    sources = [source.partition(": ") for source in SOURCES[page].values() if source]
    assert [f"{file}: {part}" for file, _, part in sources if part not in (ROOT / file).read_text(encoding="utf-8")] == []


def test_the_table_of_waits_has_the_values_of_the_default_backoff() -> None:
    text = text_of("docs/guides/retries.md")
    longest = [
        min(Backoff().base * Backoff().factor ** (number - 1), Backoff().cap).total_seconds() for number in range(1, 20)
    ]
    assert [int(seconds) for seconds in longest[:4]] == [1, 2, 4, 8]
    assert max(longest) == 3600
    units = {"s": 1, "min": 60, "h": 3600}
    rows = re.findall(r"\| (\d+) \| ([\d.]+) (s|min|h) \| ([\d.]+) (s|min|h) \|", text)
    assert [int(row[0]) for row in rows] == [3, 5, 8, 12, 16, 20]
    for attempt, mean, mean_unit, most, most_unit in rows:
        total = sum(longest[: int(attempt) - 1])
        assert float(mean) * units[mean_unit] == pytest.approx(total / 2, rel=0.1)
        assert float(most) * units[most_unit] == pytest.approx(total, rel=0.1)
    assert sum(longest) / 3600 == pytest.approx(8, rel=0.05)


def test_the_threshold_is_twice_the_rate_to_plan_with() -> None:
    assert Thresholds().outgrown_per_second == 2 * PLANNED_PER_SECOND


def test_the_summary_of_the_benchmarks_has_the_values_of_the_table() -> None:
    text = (ROOT / "docs/benchmarks.md").read_text()
    rows = dict(re.findall(r"^\| ([^|]+?) \| ([^|]+ \|.*)$", text, re.MULTILINE))
    ours = rows["**sa_jobqueue 0.1.0a1**"].split("|")
    limit = rows["the limit: `pgbench` with our SQL"].split("|")
    others = [
        float(row.split("|")[1])
        for name, row in rows.items()
        if name.startswith(("pgqueuer", "chancy", "oban", "awa", "bullmq"))
    ]
    assert f"{min(others):.1f} times the fastest other queue" in text
    assert f"and {float(limit[1]):g} of\n  what `pgbench` does" in text
    assert f"{float(ours[4]):.1f} ms from the commit to the handler (p50)" in text
    results = json.loads((ROOT / "benchmarks/results.json").read_text())["results"]
    result_by_case = {(result["scenario"], result["case"]): result for result in results}

    def figure(scenario: str, case: str, name: str) -> float:
        return float(result_by_case[scenario, case]["figures"][name])

    def ratio(scenario: str, case: str) -> float:
        return float(result_by_case[scenario, case]["ratio"])

    def cpu(case: str) -> float:
        costs = result_by_case["single enqueue beside peers", case]["per_job"]
        return float(costs["client_cpu_us"] + costs["server_cpu_us"])

    p50 = {
        name: figure("latency beside peers", name, "p50_ms") for name in ("bullmq", "oban", "chancy", "pgqueuer, asyncpg")
    }
    horizon = [figure("held-back horizon", f"plain, {state}", "p99_ms") for state in ("500,000 dead", "not held back")]
    event, child = ("events", "event to handler"), ("events", "child's return to parent")
    words = " ".join(text.split())
    drained = result_by_case["drain beside peers", "sa_jobqueue"]["rate"]["median"]
    for sentence in (
        f"about {round(drained, -2):,.0f} jobs a second",
        f"BullMQ ({p50['bullmq']:.1f} ms), Oban ({p50['oban']:.1f}), Chancy ({p50['chancy']:.1f}) and PgQueuer with asyncpg "
        f"({p50['pgqueuer, asyncpg']:.1f}) are faster, also at the 99th percentile",
        f"costs {cpu('sa_jobqueue, connection') / cpu('pgqueuer, asyncpg'):.1f} times the CPU time that it costs in PgQ",
        f"and {cpu('sa_jobqueue, connection') / cpu('pgqueuer, psycopg'):.1f} times with psycopg",
        f"of three round trips, it costs {cpu('sa_jobqueue') / cpu('pgqueuer, asyncpg'):.1f} times",
        f"adds {ratio('transaction', 'sync: session.add(job)'):.1f} times the CPU time that another plain row adds, "
        f"with an `AsyncSession` {ratio('transaction', 'async: session.add(job)'):.1f} times",
        f"`handler.enqueue` {ratio('transaction', 'sync: handler.enqueue'):.1f} times that of a text INSERT into a plain "
        f"table, with an `AsyncSession` {ratio('transaction', 'async: handler.enqueue'):.1f} times",
        f"takes {ratio('bulk transaction', 'add_all of jobs'):.1f} times the CPU time of plain rows",
        f"`enqueue_many` of 10,000 jobs {ratio('bulk transaction', 'enqueue_many of jobs'):.1f} times that of",
        f"takes {horizon[0] / horizon[1]:.0f} times as long at the 99th percentile",
        f"{figure(*event, 'p50_ms'):.1f} ms from the commit of an event to the line after `wait_for` "
        f"(p50; p99 {figure(*event, 'p99_ms'):.1f} ms)",
        f"{figure(*child, 'p50_ms'):.0f} ms from the return of a child's handler to the line after `ctx.run` of its parent "
        f"(p50; p99 {figure(*child, 'p99_ms'):.0f} ms)",
    ):
        assert sentence in words

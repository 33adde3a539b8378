"""Numbers that several pages state have one source, and the pages state its value."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from sa_jobqueue.db.connections import OWN_CONNECTIONS
from sa_jobqueue.observe.health.thresholds import Thresholds
from sa_jobqueue.worker import WorkerOptions
from sa_jobqueue.worker.background.heartbeat import IDLE_MOST

ROOT: Final = Path(__file__).parents[2]
OPTIONS: Final = WorkerOptions()
HEARTBEAT_TIMEOUT: Final = OPTIONS.heartbeat_timeout.total_seconds()
HEARTBEAT_INTERVAL: Final = OPTIONS.heartbeat_interval.total_seconds()
PLANNED_PER_SECOND: Final = 1_000
"""Jobs a second to plan with: advice, of which the default of a threshold is twice."""

STATED: Final[dict[str, list[tuple[str, str, float]]]] = {
    "docs/guides/reliability.md": [
        ("constant", "`heartbeat_timeout` {:g} s", HEARTBEAT_TIMEOUT),
        ("constant", "`heartbeat_interval` {:g} s", HEARTBEAT_INTERVAL),
        ("bound", "at most {:g} s (`heartbeat_timeout`", HEARTBEAT_TIMEOUT + HEARTBEAT_INTERVAL),
        ("bound", "or {:g} s if all workers have [long been idle]", HEARTBEAT_TIMEOUT + IDLE_MOST),
    ],
    "docs/guides/cost-to-your-database.md": [
        ("constant", "but every {:g} s at least", IDLE_MOST),
        ("bound", "| jobs of a worker that dies | {:g} s instead of", HEARTBEAT_TIMEOUT + IDLE_MOST),
        ("bound", "instead of {:g} s |", HEARTBEAT_TIMEOUT + HEARTBEAT_INTERVAL),
        ("constant", "at most `{} + concurrency`", OWN_CONNECTIONS),
    ],
    "docs/guides/workers-in-production.md": [
        ("constant", "at most `{} + concurrency`", OWN_CONNECTIONS),
        ("bound", "up to [{:,} jobs a second]", PLANNED_PER_SECOND),
    ],
    "examples/deploy/compose.yaml": [("constant", "at most `{} + concurrency`", OWN_CONNECTIONS)],
    "docs/benchmarks.md": [("bound", "up to {:,} jobs a second", PLANNED_PER_SECOND)],
    "docs/guides/faq.md": [("bound", "up to {:,} jobs a second", PLANNED_PER_SECOND)],
    "README.md": [("bound", "about {:,} jobs a second", PLANNED_PER_SECOND)],
    "docs/guides/monitoring.md": [("constant", "| {:,.0f} and 200 GiB |", Thresholds().outgrown_per_second)],
}
"""By page: the kind of a number, the words around it, and its value in the code."""


@pytest.mark.parametrize("page", STATED)
def test_a_page_states_the_numbers_of_the_code(page: str) -> None:
    text = (ROOT / page).read_text()
    missing = [stated for _, words, value in STATED[page] if (stated := words.format(value)) not in text]
    assert missing == []


def test_the_threshold_is_twice_the_rate_to_plan_with() -> None:
    assert Thresholds().outgrown_per_second == 2 * PLANNED_PER_SECOND


def test_the_summary_of_the_benchmarks_has_the_values_of_the_table() -> None:
    text = (ROOT / "docs/benchmarks.md").read_text()
    rows = dict(re.findall(r"^\| ([^|]+?) \| ([^|]+ \|.*)$", text, re.MULTILINE))
    ours = rows["**sa_jobqueue 0.1.0a1**"].split("|")
    limit = rows["the limit: `pgbench` with our SQL"].split("|")
    oban = rows["oban 0.7.0"].split("|")
    others = [
        float(row.split("|")[1]) for name, row in rows.items() if name.startswith(("pgqueuer", "chancy", "oban", "awa"))
    ]
    assert f"{min(others):.1f} times the fastest other queue" in text
    assert f"and {float(limit[1]):g} of\n  what `pgbench` does" in text
    assert f"{float(ours[4]):.1f} ms from the commit to the handler (p50)" in text
    assert f"faster at the median, {float(oban[4]):.1f} ms" in text

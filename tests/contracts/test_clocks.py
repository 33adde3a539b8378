"""The database's clock decides: nothing on the way of a job reads the clock of its host."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "sa_jobqueue"
WALL_CLOCKS = {"now", "utcnow", "today", "time", "time_ns", "localtime", "gmtime", "ctime"}
READERS = {"datetime", "date", "time"}
MAY = {
    "ids.py",  # the time in a UUIDv7 orders ids roughly and decides nothing
    "observe/health/measuring.py",  # a report compares the clocks
    "observe/telemetry/attempts.py",  # spans have their host's time, as OpenTelemetry wants it
    "observe/telemetry/producers.py",
}
ASIDE = {"dashboard", "cli", "pipeline", "testing"}
"""Tools of people and of analysis: no job waits for them."""


def wall_clocks(tree: ast.AST) -> list[int]:
    """Return the lines that read a wall clock, by whatever of the standard library does it."""
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr in WALL_CLOCKS
        and isinstance(node.value, (ast.Name, ast.Attribute))
        and (node.value.id if isinstance(node.value, ast.Name) else node.value.attr) in READERS
    ]


@pytest.mark.slow
def test_no_wall_clock_is_read_where_jobs_are_enqueued_claimed_run_and_ended() -> None:
    lines_by_file: dict[str, list[int]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE)
        if name.parts[0] not in ASIDE and (lines := wall_clocks(ast.parse(path.read_text()))):
            lines_by_file[name.as_posix()] = lines
    assert not lines_by_file.keys() - MAY, lines_by_file


def test_a_read_of_the_wall_clock_is_detected() -> None:
    code = "import time, datetime\nfrom datetime import date\na = time.time\nb = datetime.datetime.now()\nc = date.today()\n"
    assert wall_clocks(ast.parse(code + "d = func.now()\ne = time.monotonic()\nf = loop.time()\n")) == [3, 4, 5]

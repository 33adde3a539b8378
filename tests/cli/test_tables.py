"""Tables of the command line on a terminal of 80 columns: one line a row, the first columns whole or nearly."""

from __future__ import annotations

import io
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from rich.console import Console

from sa_jobqueue.cli import _output
from sa_jobqueue.ids import uuid7

WIDTH = 80


def printed(monkeypatch: pytest.MonkeyPatch, headings: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    """Return the lines of a table on a terminal."""
    stream = io.StringIO()
    terminal = Console(file=stream, width=WIDTH, force_terminal=True, color_system=None, markup=False)
    monkeypatch.setattr(_output, "console", lambda *, stderr=False: terminal)
    _output.console().print(_output.table_of("rows", headings, rows))
    return [line for line in stream.getvalue().splitlines() if line]


def test_a_table_that_is_too_wide_cuts_its_widest_columns_and_leaves_out_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [str(uuid7()) for _ in range(3)]
    headings = ["id", "type", "status", "attempt", "due", "queue", "error"]
    rows = [
        [job_id, "a" * 100, "pending", "1/8", "2026-11-25 22:10:34.123Z", "mail", "ValueError: 界" * 50] for job_id in ids
    ]
    lines = printed(monkeypatch, headings, rows)
    assert all(len(line) <= WIDTH for line in lines)
    for job_id in ids:
        (line,) = (line for line in lines if job_id in line)
        assert "aaaaaaaaa…" in line
        assert "pending" in line
    assert lines[-1] == "Not shown: due, queue, error. A wider terminal or --json has them."


def test_ids_are_shortened_where_the_table_is_too_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    job_id, text = uuid7(), "x" * 50
    short = f"{str(job_id)[:8]}..{str(job_id)[-6:]}"
    assert any(short in line and text in line for line in printed(monkeypatch, ["id", "error"], [[job_id, text]]))
    assert any(str(job_id) in line for line in printed(monkeypatch, ["id", "queue"], [[job_id, "mail"]]))


def test_times_are_relative_where_the_table_is_too_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    now, text = datetime.now(UTC), "x" * 60
    times = {
        "2 h 5 min ago": -timedelta(hours=2, minutes=5, seconds=30),
        "in 3 d 4 h": timedelta(days=3, hours=4, minutes=30),
    }
    for relative, distance in times.items():
        instant = now + distance
        wide, narrow = (printed(monkeypatch, ["due", "error"], [[instant, text[:length]]]) for length in (40, 60))
        assert any(f"{instant:%Y-%m-%d %H:%M:%SZ}" in line for line in wide)
        assert any(relative in line for line in narrow)


def test_a_table_that_fits_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = printed(monkeypatch, ["queue", "by"], [["mail", "ann"], ["exports-of-reports", None]])
    assert any("exports-of-reports" in line and "-" in line for line in lines)
    assert not any("…" in line or "Not shown" in line for line in lines)


@pytest.mark.parametrize("columns", [1, 2, 12, 40])
def test_any_number_of_columns_fits_or_only_the_first_is_left(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    lines = printed(monkeypatch, [f"column {n}" for n in range(columns)], [["x" * 15] * columns])
    assert sum("x" * 15 in line for line in lines) == 1
    assert all(len(line) <= WIDTH for line in lines if "Not shown" not in line)


@pytest.mark.parametrize(
    ("duration", "text"),
    [
        (timedelta(0), "0 s"),
        (timedelta(seconds=5.756619), "5.757 s"),
        (timedelta(minutes=5), "5 min"),
        (timedelta(days=1, hours=2, seconds=3.5), "1 d 2 h 3.5 s"),
        (timedelta(seconds=-2), "-2 s"),
    ],
)
def test_durations_have_the_units_of_other_texts(duration: timedelta, text: str) -> None:
    assert _output.shown(duration) == text

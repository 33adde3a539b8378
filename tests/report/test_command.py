"""`sa-jobqueue report`: one history of an archive and a database, for people and for programs, without its password."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner
from sqlalchemy import Engine, make_url

from sa_jobqueue.cli import main
from tests.fixtures.histories import HOSTILE, Rows, sample, write_archive, write_database
from tests.fixtures.parts import needs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECRET = "hunter2-and-more"


def without(rows: Rows, ids: set[str]) -> Rows:
    """Return the rows of other jobs than these."""
    kept = Rows()
    kept.jobs = [job for job in rows.jobs if job["id"] not in ids]
    for name in ("attempts", "dead_letters", "blockers"):
        kept.of(name).extend(row for row in rows.of(name) if row["job_id"] not in ids)
    return kept


@pytest.fixture
def url(database_url: str) -> str:
    """Give the database's URL with a password that it does not ask for."""
    return make_url(database_url).set(password=SECRET).render_as_string(hide_password=False)


@pytest.mark.long
def test_an_archive_and_a_database_are_combined_in_one_report(
    plainly: SparkSession, engine: Engine, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = sample()
    ended = [job["id"] for job in rows.jobs if job["status"] in {"completed", "cancelled"}]
    # What is half deleted is in both; nothing is in neither.
    write_archive(without(rows, {job["id"] for job in rows.jobs} - set(ended)), tmp_path / "archive")
    write_database(without(rows, set(ended[::2])), engine)
    page = tmp_path / "report.html"
    command = [
        "report",
        str(tmp_path / "archive"),
        url,
        "--html",
        str(page),
        "--json",
        "--since",
        "2025-12-01",
        "--slots",
        "3",
    ]
    monkeypatch.setenv("SA_JOBQUEUE_REDACT", "charge")
    done = CliRunner().invoke(main, command, catch_exceptions=False)
    assert done.exit_code == 0, done.output

    document = json.loads(done.stdout)
    examples = {group["example_type_name"]: group["example_message"] for group in document["errors"]}
    assert len(examples) > 1
    assert {name for name, message in examples.items() if message == "(redacted)"} == {"charge"}
    statuses = Counter(job["status"] for job in rows.jobs)
    summary = document["summary"]
    assert summary["jobs"] == len(rows.jobs)
    assert {status: summary[status] for status in statuses} == statuses
    by_worker = sum(job["completed_by"] is not None for job in rows.jobs)
    assert summary["attempts"] == len(rows.attempts) + by_worker
    assert summary["unresolved_dead_letters"] == sum(dead_letter["resolution"] is None for dead_letter in rows.dead_letters)
    assert sum(bucket["enqueued"] for bucket in document["throughput"]) == len(rows.jobs)
    assert sum(group["count"] for group in document["errors"]) == sum(row["error"] is not None for row in rows.attempts)
    assert document["workflows"][0]["critical_path"] == [rows.ids[name] for name in ("a", "b", "b next", "d")]
    assert [step["is_straggler"] for step in document["workflows"][0]["steps"]] == [False, True, False, False]
    assert document["since"] == "2025-12-01T00:00:00+00:00"
    capacity = {row["type_name"]: row for row in document["capacity"]}
    assert capacity["long"]["peak_utilisation"] == pytest.approx(capacity["long"]["peak_busy_workers"] / 3)

    text = page.read_text(encoding="utf-8")
    assert str(tmp_path / "archive") in text
    assert "postgresql://" in text
    assert HOSTILE not in text
    assert f"wrote {page}" in done.stderr
    # A long step prints its elapsed time every ten seconds.
    steps = [line for line in done.stderr.splitlines() if not re.search(r", \d+ (?:s|min|h)$", line)]
    assert steps[:3] == ["report: starting Spark", "report: reading", "report: computing"]
    for output in (text, done.output, done.stderr):
        assert SECRET not in output

    # Nothing ended before that, which the page states. The database is the variable's.
    monkeypatch.setenv("SA_JOBQUEUE_URL", url)
    done = CliRunner().invoke(main, ["report", "--html", str(page), "--until", "2020-01-01"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert "There is no history here" in page.read_text(encoding="utf-8")
    assert SECRET not in done.output + page.read_text(encoding="utf-8")


def test_invalid_report_arguments_are_refused_before_spark_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs("jinja2")
    monkeypatch.delenv("SA_JOBQUEUE_URL", raising=False)
    page = ["--html", str(tmp_path / "report.html")]
    nowhere = f"postgresql://me:{SECRET}@127.0.0.1:1/none"
    refused = {
        "no output: pass --html FILE": ["report", str(tmp_path)],
        "no source: pass the PATH of an archive or the URL of a database, or set SA_JOBQUEUE_URL": ["report", *page],
        "more than one database": ["report", nowhere, nowhere, *page],
        "--since must be before --until": ["report", nowhere, "--since", "2026-01-02", "--until", "2026-01-01", *page],
        f"no archive at {tmp_path}": ["report", str(tmp_path), *page],
        "cannot use postgresql+psycopg://me:***@127.0.0.1:1/none": ["report", nowhere, *page],
        "the database URL has two @": ["report", f"postgresql://me:{SECRET}@a@b/c", *page],
    }
    for message, command in refused.items():
        done = CliRunner().invoke(main, command)
        assert done.exit_code != 0
        assert message in " ".join(done.output.split()), done.output
        assert SECRET not in done.output
    monkeypatch.setattr("sa_jobqueue.pipeline.cli.report._NEEDS", ("pyspark", "no_such_library"))
    done = CliRunner().invoke(main, ["report", str(tmp_path), *page])
    assert "no_such_library is not installed: install sa-jobqueue[report]" in done.output
    assert not (tmp_path / "report.html").exists()

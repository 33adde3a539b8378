"""Payloads of some types left out of DataFrames, whatever they were read from."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import Engine, func, insert

from sa_jobqueue import Job, JobStatus
from sa_jobqueue.display.redaction import REDACTED, VARIABLE, is_redacted
from sa_jobqueue.errors import InvalidOptionError
from tests.fixtures.database import both_servers
from tests.fixtures.jobs import Jobs
from tests.spark.reading import read

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CARD = "4111 1111"
TYPES = ("charge", "charges", "pay.out", "payXout", "charge\n", "mail", None)


@pytest.mark.parametrize("patterns", ["charge,pay.*", "*", ""])
def test_redacted_rows_match_the_command_line(plainly: SparkSession, patterns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from sa_jobqueue.pipeline.spark import redacted

    monkeypatch.setenv(VARIABLE, patterns)
    error = json.dumps({"type": "Declined", "message": CARD, "traceback": CARD, "log": [CARD]})
    rows = [(kind, json.dumps(CARD), None, error) for kind in TYPES]
    frame = plainly.createDataFrame(rows, "type_name string, input string, output string, last_error string")
    row_by_type = {row.type_name: row for row in redacted(frame).collect()}
    for kind in TYPES:
        hidden = is_redacted(kind) or (kind is None and patterns != "")
        assert row_by_type[kind].input == json.dumps(REDACTED if hidden else CARD), kind
        assert row_by_type[kind].output is None
        shown = json.loads(row_by_type[kind].last_error)
        assert shown == ({"type": "Declined", "message": REDACTED} if hidden else json.loads(error))
    with pytest.raises(InvalidOptionError, match="type_name"):
        redacted(frame.drop("type_name"))
    if patterns:
        assert redacted(frame, types=["mail"]).where("input LIKE '%4111%'").count() == len(TYPES) - 2


@both_servers
def test_redacted_payloads_never_leave_the_database(database_url: str, jobs: Jobs, engine: Engine) -> None:
    error = {"type": "Declined", "message": CARD, "log": [CARD]}
    kinds = {}
    for kind in ("charge", "charges", "pay.out", "payXout", "a_b", "aXb"):
        job_id = jobs.add(JobStatus.DEAD, type_name=kind, chain_type_name=kind, input=CARD, last_error=error, error=error)
        kinds[str(job_id)] = kind
        with engine.begin() as connection:
            attempt = {"job_id": job_id, "attempt": 7, "outcome": "failed", "started_at": func.now(), "error": error}
            connection.execute(insert(Job.Attempt).values(attempt))
    hidden = {"charge", "pay.out", "a_b"}
    for row in read(database_url, "jobs", redact="charge,pay.*,a_b"):
        assert json.loads(row["input"]) == (REDACTED if row["type_name"] in hidden else CARD)
        shown_error = {"type": "Declined", "message": REDACTED} if row["type_name"] in hidden else error
        assert (json.loads(row["last_error"]), row["output"]) == (shown_error, None)
    for dataset, count in (("attempts", 6), ("dead_letters", 6), ("blockers", 0)):
        rows = read(database_url, dataset, redact="charge,pay.*,a_b")
        assert len(rows) >= count
        for row in rows:
            assert (CARD in str(row)) is (kinds[row["job_id"]] not in hidden), (dataset, row)
        assert CARD not in str(read(database_url, dataset, redact="*"))

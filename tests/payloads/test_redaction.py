"""Payloads of the types that the environment names are shown nowhere; their errors are a class and no more."""

from __future__ import annotations

import json
import logging
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from click.testing import CliRunner
from opentelemetry.sdk.trace import TracerProvider

from sa_jobqueue import JobStatus, events
from sa_jobqueue.cli import main
from sa_jobqueue.display.redaction import REDACTED, VARIABLE, is_redacted, redacted, redacted_error
from sa_jobqueue.observe.log_lines import LogCapture
from sa_jobqueue.observe.telemetry.attempts import _describe
from sa_jobqueue.types import AttemptOutcome, DeadReason
from sa_jobqueue.worker import logs
from tests.fixtures.attempts import attempt, within
from tests.fixtures.jobs import Jobs

CARD = "4111 1111"
ERROR = {"type": "Declined", "message": f"card {CARD}", "traceback": CARD, "log": [CARD], "trace_context": "00-1-2-01"}


@pytest.mark.parametrize(
    ("patterns", "type_name", "hidden"),
    [
        ("charge", "charge", True),
        ("charge", "charges", False),
        ("mail, pay.*", "pay.out", True),
        ("*", "anything", True),
        ("*", None, True),
        ("charge", None, False),
        (" , ", "", False),
        ("", "charge", False),
    ],
)
def test_types_are_named_exactly_or_by_patterns(
    patterns: str, type_name: str | None, hidden: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, patterns)
    assert is_redacted(type_name) is hidden
    assert redacted(type_name, {"card": CARD}) == (REDACTED if hidden else {"card": CARD})
    assert redacted(type_name, None) is None
    shown = {"type": "Declined", "trace_context": "00-1-2-01", "message": REDACTED}
    assert redacted_error(type_name, ERROR) == (shown if hidden else ERROR)


def test_logs_spans_and_captured_lines_omit_redacted_payloads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "charge,test")
    job = ("7", "charge", 2)
    ends: list[Any] = [
        events.JobRescheduled(*job, AttemptOutcome.FAILED, timedelta(seconds=1), ERROR),
        events.JobDied(*job, DeadReason.EXHAUSTED, ERROR),
        events.MiddlewareFailed(*job, ValueError(CARD)),
    ]
    stream = StringIO()
    logger = logging.getLogger("redacted")
    handler = logging.StreamHandler(stream)
    logger.addHandler(handler)
    bus = events.EventBus()
    logs.subscribe(bus, logger)
    for end in ends:
        bus.emit(end)
        assert CARD not in str(logs.describe(end))
    logger.removeHandler(handler)
    assert "Declined: (redacted)" in stream.getvalue()
    assert CARD not in stream.getvalue()
    for end in ends[:2]:
        span: Any = TracerProvider().get_tracer("test").start_span("test")
        _describe(span, end)
        assert span.attributes["error.type"] == "Declined"
        assert CARD not in span.to_json()
    logger.addHandler(capturing := LogCapture(5, logging.INFO))
    entered = attempt()  # of the type `test`
    within(entered, lambda: logger.warning(CARD))
    logger.removeHandler(capturing)
    assert entered.notes == {}


def test_no_command_shows_redacted_payloads(database_url: str, jobs: Jobs) -> None:
    job_id = jobs.add(JobStatus.DEAD, type_name="charge", input={"card": CARD}, last_error=ERROR, max_attempts=1)
    (dead_letter,) = jobs.dead_letters(job_id)

    def run(*arguments: str, patterns: str = "charge") -> str:
        environment = {"SA_JOBQUEUE_URL": database_url, VARIABLE: patterns}
        result = CliRunner().invoke(main, [*arguments], env=environment)
        assert result.exit_code == 0, result.output
        return result.output

    commands = (
        ("jobs", "show", str(job_id)),
        ("jobs", "list"),
        ("chains", "show", str(job_id)),
        ("chains", "list"),
        ("dead-letters", "show", str(dead_letter["id"])),
        ("dead-letters", "list"),
        ("explain", str(job_id)),
        ("trace", str(job_id)),
    )
    for command in commands:
        for style in ([], ["--json"]):
            assert CARD not in run(*command, *style), command
    assert REDACTED in run("jobs", "show", str(job_id))
    document = json.loads(run("jobs", "show", str(job_id), "--json", patterns="mail"))
    assert document["job"]["input"] == {"card": CARD}

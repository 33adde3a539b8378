"""Log lines name their attempt, in every format; the last of an attempt can be kept with its error."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Iterator
from contextvars import copy_context
from datetime import timedelta
from io import StringIO

import pytest

from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.observe.log_lines import MOST_CHARACTERS, TEXT, JsonFormatter, LogCapture, bind, capture
from sa_jobqueue.worker import logs
from sa_jobqueue.worker.finish.outcomes import failed
from tests.fixtures.attempts import attempt, within
from tests.fixtures.events import CASES

FIELDS = {"job_id": "00000000-0000-0000-0000-000000000001", "job_attempt": 2, "job_type": "test"}


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    """Give an application's logger that writes nowhere yet."""
    logger = logging.getLogger("application")
    logger.setLevel(logging.DEBUG)
    yield logger
    logger.handlers.clear()


def written(logger: logging.Logger, formatter: logging.Formatter) -> StringIO:
    stream = StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    bind(handler)
    bind(handler)
    logger.addHandler(handler)
    return stream


def test_each_line_of_a_handler_names_its_attempt_also_in_tasks_and_threads(logger: logging.Logger) -> None:
    stream = written(logger, JsonFormatter())

    def handler() -> None:
        logger.info("mailed %s", "ann", extra={"seconds": timedelta(seconds=2)})
        thread = threading.Thread(target=copy_context().run, args=(logger.info, "from a thread"))
        thread.start()
        thread.join()

        async def go_on() -> None:
            await asyncio.create_task(asyncio.to_thread(logger.info, "from a task"))

        asyncio.run(go_on())
        try:
            raise ValueError("no route\nto it")
        except ValueError:
            logger.exception("failed")

    within(attempt(), handler)
    logger.info("outside")
    *lines, outside = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line["message"] for line in lines] == ["mailed ann", "from a thread", "from a task", "failed"]
    assert all({name: line[name] for name in FIELDS} == FIELDS for line in lines)
    assert (lines[0]["level"], lines[0]["logger"], lines[0]["seconds"]) == ("info", "application", "0:00:02")
    assert lines[0]["time"].endswith("+00:00")
    assert lines[3]["exception"].endswith("ValueError: no route\nto it")
    assert not FIELDS.keys() & outside.keys()


def test_text_lines_of_handlers_begin_with_their_job_and_event_lines_do_not(logger: logging.Logger) -> None:
    stream = written(logger, logging.Formatter("%(attempt)s%(message)s"))
    assert "%(attempt)s%(message)s" in TEXT
    within(attempt(), lambda: logger.info("mailed"))
    within(attempt(), lambda: logger.info("job 7 started", extra={"event": "JobStarted", "job_id": "7"}))
    logger.info("outside")
    name = f"job {FIELDS['job_id']} attempt 2: "
    assert stream.getvalue().splitlines() == [f"{name}mailed", "job 7 started", "outside"]


@pytest.mark.parametrize("kind", list(CASES), ids=lambda kind: kind.__name__)
def test_every_event_is_a_line_of_json_with_fields(kind: type, logger: logging.Logger) -> None:
    stream = written(logger, JsonFormatter())
    record = logs.describe(CASES[kind][0])
    logger.log(record.level, record.message, record.arguments, extra={"event": kind.__name__} | record.fields)
    line = json.loads(stream.getvalue())
    assert line["event"] == kind.__name__
    assert record.fields.keys() <= line.keys()


def test_the_last_log_lines_of_an_attempt_are_stored_with_its_error(logger: logging.Logger) -> None:
    capturing = LogCapture(3, logging.INFO)
    logger.addHandler(capturing)
    entered, other_attempt = attempt(), attempt()

    class Broken:
        def __str__(self) -> str:
            raise KeyError

    def handler() -> None:
        for number in range(5):
            logger.info("line %d", number)
        logger.debug("too detailed")
        # Not through the logger: a lone surrogate in what pytest has captured ends a worker of pytest-xdist.
        text = "nul \x00 and \ud800 " + "x" * 1000
        capturing.handle(logger.makeRecord(logger.name, logging.INFO, __file__, 1, text, (), None))
        logger.info("an event", extra={"event": "JobStarted"})

    within(entered, handler)
    within(other_attempt, lambda: logger.info("of another"))
    logger.info("of nobody")
    raised, logging.raiseExceptions = logging.raiseExceptions, False
    within(entered, lambda: logger.info("%s", Broken()))
    logging.raiseExceptions = raised
    end = failed(entered, ValueError("no"), None, ran=timedelta(seconds=1))
    assert end.error is not None
    assert end.error["message"] == "no"
    first, second, third = end.error["log"]
    assert first.endswith("INFO application: line 3")
    assert second.endswith("INFO application: line 4")
    assert "nul \\x00 and \\ud800 xxx" in third
    assert len(third) < MOST_CHARACTERS + 20
    assert "of another" in failed(other_attempt, ValueError(), None, ran=timedelta(0)).error["log"][0]  # type: ignore[index]


@pytest.mark.parametrize("lines", [0, 1001])
def test_capturing_is_bounded(lines: int) -> None:
    with pytest.raises(InvalidOptionError, match="lines"):
        capture(lines)

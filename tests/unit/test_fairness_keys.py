"""Whose a job is: said by `fairness_key`, by a field of the payload, or by a function of it; refused before it is
written."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy.orm import Session

from sa_jobqueue import Job, JobQueue, WorkerOptions
from sa_jobqueue.errors import InvalidJobError, InvalidOptionError
from sa_jobqueue.operations import enqueue_payloads


def test_a_key_is_a_part_of_the_queue() -> None:
    assert Job("t", queue="mail", fairness_key=42).queue == "mail/42"
    assert Job("t", queue="mail/a/b").fairness_key == "a/b"
    assert Job("t", queue="mail").fairness_key is None


def test_a_handler_reads_the_key_from_the_payload() -> None:
    queue = JobQueue()

    @queue.handler("a", queue="mail", fairness_by="order.customer")
    def by_path(payload: dict[str, Any]) -> None: ...

    @queue.handler("b", fairness_by=lambda payload: payload["n"] % 7)
    def by_function(payload: dict[str, Any]) -> None: ...

    assert by_path.job({"order": {"customer": 42}}).queue == "mail/42"
    assert by_path.job({"order": {"customer": None}}).queue == "mail"
    assert by_path.job({"order": {}}, fairness_key="x").queue == "mail/x"
    assert by_path.job({}, queue="other/x").queue == "other/x"
    with pytest.raises(InvalidJobError, match=r"fairness_key.*give one for all, or use enqueue_many"):
        enqueue_payloads(Session(), by_path, [])
    assert by_function.job({"n": 9}).queue == "default/2"
    payloads: list[dict[str, Any]] = [
        {"order": {}},
        {"order": {"customer": [1]}},
        {"order": {"customer": True}},
        {"order": "x"},
    ]
    for payload in payloads:
        with pytest.raises(InvalidJobError, match="fairness_key"):
            by_path.job(payload)


@pytest.mark.parametrize("key", ["", "a b", "x" * 95, 1.5, True, "ü"])
def test_a_key_that_is_no_name_is_refused_naming_what_it_may_be(key: Any) -> None:
    with pytest.raises(InvalidJobError, match=r"fairness_key.*must be 1 to 92 letters"):
        Job("t", queue="default", fairness_key=key)


def test_a_part_is_refused_where_a_queue_is_meant() -> None:
    with pytest.raises(InvalidOptionError, match=r"queues: 'mail/42' is a part of 'mail'"):
        WorkerOptions(queues=["mail/42"])
    with pytest.raises(InvalidOptionError, match="what follows '/' is a fairness_key"):
        JobQueue().handler("t", queue="mail/42")
    with pytest.raises(InvalidOptionError, match="fairness_by"):
        JobQueue().handler("t", fairness_by="a..b")
    with pytest.raises(InvalidJobError, match=r"fairness_key.*is a part with a key already"):
        Job("t", queue="mail/42", fairness_key=1)

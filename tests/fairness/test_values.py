"""Whose a job is: said by `fairness_key`, by a field of the payload, or by a function of it; refused before it is
written."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy.orm import Session

from sa_jobqueue import Job, JobQueue, WorkerOptions
from sa_jobqueue.errors import InvalidJobError, InvalidOptionError
from sa_jobqueue.policies.fairness import SEPARATOR, QueueKey


def test_the_fairness_key_is_a_column_beside_the_queue() -> None:
    job = Job("t", queue="mail/eu", fairness_key=42)
    assert (job.queue, job.fairness_key) == ("mail/eu", "42")
    assert Job("t", fairness_key="ann@example.org").fairness_key == "ann@example.org"
    assert Job("t").fairness_key == Job("t", fairness_key="").fairness_key == ""


def test_a_handler_reads_the_key_from_the_payload() -> None:
    queue = JobQueue()

    @queue.handler("a", queue="mail", fairness_by="order.customer")
    def by_path(payload: dict[str, Any]) -> None: ...

    @queue.handler("b", fairness_by=lambda payload: payload["n"] % 7)
    def by_function(payload: dict[str, Any]) -> None: ...

    assert by_path.job({"order": {"customer": 42}}).fairness_key == "42"
    assert by_path.job({"order": {"customer": None}}).fairness_key == ""
    assert by_path.job({"order": {}}, fairness_key="x").fairness_key == "x"
    moved = by_path.job({"order": {"customer": "b"}}, queue="other")
    assert (moved.queue, moved.fairness_key) == ("other", "b")
    with pytest.raises(InvalidJobError, match=r"fairness_key.*give one for all, or use enqueue_many"):
        by_path.enqueue_many(Session(), [])
    assert by_function.job({"n": 9}).fairness_key == "2"
    payloads: list[dict[str, Any]] = [
        {"order": {}},
        {"order": {"customer": [1]}},
        {"order": {"customer": True}},
        {"order": "x"},
    ]
    for payload in payloads:
        with pytest.raises(InvalidJobError, match=r"the payload.*order\.customer") as refused:
            by_path.job(payload)
        assert refused.value.field == "fairness_key"


@pytest.mark.parametrize("key", ["a\0b", "x" * 101, 1.5, True, b"x"])
def test_a_fairness_key_that_does_not_fit_the_column_is_refused(key: Any) -> None:
    with pytest.raises(InvalidJobError, match=r"fairness_key.*must be text of at most 100 characters without NUL") as caught:
        Job("t", fairness_key=key)
    assert caught.value.field == "fairness_key"
    assert Job("t", fairness_key="x" * 100).fairness_key == "x" * 100


def test_a_queue_name_may_contain_a_slash() -> None:
    assert WorkerOptions(queues=["mail/eu"]).limits == {"mail/eu": None}
    queue = JobQueue()
    queue.handler("t", queue="mail/eu")(lambda: None)
    queue.selector("mail/eu")(lambda candidates, free: candidates)
    with pytest.raises(InvalidOptionError, match=r"must be the path of a field.*'a\.\.b'") as refused:
        queue.handler("u", fairness_by="a..b")
    assert refused.value.option == "fairness_by"


def test_a_fairness_key_may_contain_the_separator() -> None:
    queue_key = QueueKey("mail", f"a{SEPARATOR}b")
    assert (queue_key.text, QueueKey.of_text(queue_key.text)) == ("mail\x1fa\x1fb", queue_key)
    assert (QueueKey("mail").text, QueueKey.of_text("mail")) == ("mail", QueueKey("mail"))


def test_queues_and_fairness_keys_are_formatted_for_messages_and_for_the_shell() -> None:
    queue = QueueKey("mail")
    assert (queue.label, queue.named, queue.arguments) == ("mail", "queue 'mail'", "mail")
    queue_key = QueueKey("mail", "it's")
    assert queue_key.label == """mail (fairness key "it's")"""
    assert queue_key.named == """fairness key "it's" of queue 'mail'"""
    assert queue_key.arguments == """mail --fairness-key 'it'"'"'s'"""

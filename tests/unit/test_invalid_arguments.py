"""Invalid arguments are refused at once, by name."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy.orm import DeclarativeBase, MappedAsDataclass, Session

from sa_jobqueue import Deduplicate, JobMixin, JobQueue, Schedule, Snooze, WorkerOptions, enqueue_many
from sa_jobqueue.errors import InvalidJobError, InvalidOptionError
from sa_jobqueue.operations import ChainFilter, DeadLetterFilter, JobFilter


class Base(DeclarativeBase):
    """An application's base."""


def other_ids() -> None:
    class J(JobMixin[int], Base, queue_prefix="a_"): ...


def own_name() -> None:
    class J(JobMixin, Base, queue_prefix="b_"):
        __tablename__ = "zzz"


def misspelt() -> None:
    class J(JobMixin, Base, queue_prefx="c_"): ...


def twice() -> None:
    class Fresh(DeclarativeBase): ...

    class First(JobMixin, Fresh): ...

    class Second(JobMixin, Fresh): ...


def dataclass() -> None:
    class Fresh(MappedAsDataclass, DeclarativeBase): ...

    class First(JobMixin, Fresh): ...


def send(order: int) -> None: ...


REFUSED: list[tuple[Callable[[], Any], str, str]] = [
    (other_ids, "J", "ids are UUID or str"),
    (own_name, "__tablename__", "use queue_prefix"),
    (misspelt, "queue_prefx", "queue_schema, queue_prefix"),
    (twice, "queue_prefix", "class Second.*queue_prefix="),
    (dataclass, "First", "must not be a MappedAsDataclass"),
    (lambda: WorkerOptions(queues=["reports=2"]), "queues", "pass limits as a mapping"),
    (lambda: WorkerOptions(queues=["a b"]), "queues", "must be 1 to 100 of A-Z"),
    (lambda: WorkerOptions(queues=[("reports", 2)]), "queues", "must be 1 to 100 of A-Z"),  # type: ignore[list-item]
    (lambda: WorkerOptions(queues={"reports": "2"}), "queues", "must be from 1 to"),  # type: ignore[dict-item]
    (lambda: WorkerOptions(concurrency=2.5), "concurrency", "a whole number"),  # type: ignore[arg-type]
    (lambda: WorkerOptions(concurrency=True), "concurrency", "a whole number"),
    (lambda: WorkerOptions(poll_interval=5), "poll_interval", "a timedelta"),  # type: ignore[arg-type]
    (lambda: WorkerOptions(heartbeat_timeout=5), "heartbeat_timeout", "a timedelta"),  # type: ignore[arg-type]
    (lambda: JobQueue().handler("a", concurrency="3")(send), "concurrency", "a whole number"),  # type: ignore[arg-type]
    (lambda: JobQueue().handler("a", concurrency=1.5)(send), "concurrency", "a whole number"),  # type: ignore[arg-type]
    (lambda: JobQueue().batch_handler("a", max_size=5, max_wait=3), "max_wait", "a timedelta"),  # type: ignore[arg-type]
    (lambda: Schedule(name="a", cron="@daily", type_name="a", overlap=3), "overlap", "True or False"),  # type: ignore[arg-type]
    (lambda: Schedule(name="a", cron="@daily", type_name="a", catch_up=1.5), "catch_up", "from 1"),  # type: ignore[arg-type]
    (lambda: JobFilter(types="slow"), "types", "must be a list"),
    (lambda: JobFilter(statuses=["failed"]), "statuses", "got 'failed'"),  # type: ignore[list-item]
    (lambda: JobFilter(chain_ids="7"), "chain_ids", "must be a list"),
    (lambda: JobFilter(created_after=datetime(2026, 1, 1)), "created_after", "must be an aware datetime"),
    (lambda: ChainFilter(job_ids="7"), "job_ids", "must be a list"),
    (lambda: ChainFilter(statuses=["failed"]), "statuses", "got 'failed'"),  # type: ignore[list-item]
    (lambda: ChainFilter(created_before=datetime(2026, 1, 1)), "created_before", "must be an aware datetime"),
    (lambda: DeadLetterFilter(queues="mail"), "queues", "must be a list"),
    (lambda: Deduplicate("k", scope="any", window=60), "window", "must be a timedelta"),  # type: ignore[arg-type]
    (lambda: Snooze(5), "delay", "must be a timedelta"),  # type: ignore[arg-type]
    (lambda: JobQueue(Base), "model", "class Job"),
    (lambda: JobQueue("shop"), "model", "class Job"),  # type: ignore[call-overload]
    (lambda: Snooze(timedelta(-1)), "delay", "from zero"),
]


@pytest.mark.parametrize(("make", "option", "words"), REFUSED)
def test_an_invalid_argument_is_refused_by_name(make: Callable[[], Any], option: str, words: str) -> None:
    with pytest.raises(InvalidOptionError, match=words) as caught:
        make()
    assert caught.value.option == option


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"version": "2"}, "a whole number"),
        ({"priority": 10}, "from -9 to 9"),
        ({"max_attempts": 0}, "from 1"),
        ({"timeout": 5}, "a timedelta"),
        ({"rate_cost": 0}, "from 1"),
        ({"queue": "a b"}, "must be 1 to 100 of A-Z"),
    ],
)
def test_an_option_that_a_handler_sets_for_its_jobs_is_refused_as_of_a_job(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidJobError, match=words) as caught:
        JobQueue().handler("a", **options)(send)
    assert [caught.value.field] == list(options)


def test_a_value_that_is_not_a_job_is_refused_by_its_index() -> None:
    with pytest.raises(InvalidJobError, match="must be a job") as caught:
        enqueue_many(Session(), [{"a": 1}])  # type: ignore[list-item]
    assert caught.value.field == "new[0]"


def test_a_subclass_of_a_job_class_shares_its_tables() -> None:
    class Fresh(DeclarativeBase): ...

    class Parent(JobMixin, Fresh, queue_prefix="p_"): ...

    class Child(Parent): ...

    assert Child.__table__ is Parent.__table__
    assert Child.DeadLetter is Parent.DeadLetter

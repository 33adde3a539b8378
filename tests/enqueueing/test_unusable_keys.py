"""Ids and keys that the database or its indexes cannot store are refused by name, by every way to enqueue."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import DeclarativeBase, Session

from sa_jobqueue import Job, JobMixin, JobQueue, enqueue, enqueue_many
from sa_jobqueue.errors import InvalidJobError, InvalidOptionError

SURROGATE = "caf\udce9"
jobs = JobQueue()


@jobs.handler("mail")
def mail(number: int) -> None: ...


@jobs.handler("tick")
def tick() -> None: ...


WRITERS: dict[str, Callable[[Session, dict[str, Any]], Any]] = {
    "session.add": lambda session, given: session.add(Job("mail", 1, **given)),
    "handler.job": lambda session, given: session.add(mail.job(1, **given)),
    "handler.enqueue": lambda session, given: mail.enqueue(session, 1, **given),
    "enqueue": lambda session, given: enqueue(session, Job("mail", 1, **given)),
    "enqueue_many": lambda session, given: enqueue_many(session, [Job("mail", 1, **given)]),
    "continuation": lambda session, given: mail.continuation(1, **given),
}


@pytest.mark.parametrize("field", ["ordering_key", "fairness_key", "deduplication_key"])
@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS.keys())
def test_a_lone_surrogate_in_a_key_is_refused_by_name(
    field: str, write: Callable[[Session, dict[str, Any]], Any], engine: Engine
) -> None:
    with Session(engine) as session, session.begin(), pytest.raises(InvalidJobError) as refused:
        write(session, {field: SURROGATE})
    assert refused.value.field == field
    assert "lone surrogates" in refused.value.reason


@pytest.mark.parametrize("field", ["ordering_key", "deduplication_key"])
def test_a_key_of_too_many_bytes_is_refused_by_name(field: str) -> None:
    given: Any = {field: "€" * 334}
    with pytest.raises(InvalidJobError, match="1,000 bytes") as refused:
        Job("mail", 1, **given)
    assert refused.value.field == field


def test_the_longest_text_ids_and_keys_fit_the_indexes(engine: Engine) -> None:
    class Base(DeclarativeBase): ...

    class LongJob(JobMixin[str], Base, queue_prefix="long_"): ...

    Base.metadata.create_all(engine)
    longest = "€" * 332
    with pytest.raises(InvalidJobError, match="1,000 bytes"):
        LongJob("mail", 1, id="€" * 334)
    key = "".join(chr(0x4E00 + number * 37 % 20_000) for number in range(333))  # does not compress
    with Session(engine) as session, session.begin():
        first = LongJob("mail", 1, id=key, ordering_key=key[::-1], deduplication_key=key, fairness_key=key[:100])
        session.add(LongJob("mail", 1, id=key[:-1], blockers=[first], ordering_key=longest))
    Base.metadata.drop_all(engine)


def test_a_surrogate_in_the_settings_of_a_schedule_is_refused() -> None:
    with pytest.raises((InvalidOptionError, InvalidJobError), match="fairness_key"):
        jobs.cron("@daily", name="a", fairness_key=SURROGATE)(tick)

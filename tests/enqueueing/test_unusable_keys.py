"""Ids and keys that the database or its indexes cannot store are refused by name, by every way to enqueue."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Engine, select, text, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import DeclarativeBase, Session

from sa_jobqueue import Deduplicate, Job, JobMixin, JobQueue, enqueue, enqueue_many
from sa_jobqueue.errors import InvalidJobError, InvalidOptionError

SURROGATE = "caf\udce9"
jobs = JobQueue()


@jobs.handler("mail")
def mail(number: int) -> None: ...


@jobs.handler("tick")
def tick() -> None: ...


WRITERS: dict[str, Callable[[Session, dict[str, Any]], Any]] = {
    "session.add": lambda session, options: session.add(Job("mail", 1, **options)),
    "handler.job": lambda session, options: session.add(mail.job(1, **options)),
    "handler.enqueue": lambda session, options: mail.enqueue(session, 1, **options),
    "enqueue": lambda session, options: enqueue(session, Job("mail", 1, **options)),
    "enqueue_many": lambda session, options: enqueue_many(session, [Job("mail", 1, **options)]),
    "continuation": lambda session, options: mail.continuation(1, **options),
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
    options: Any = {field: "€" * 334}
    with pytest.raises(InvalidJobError, match="1,000 bytes") as refused:
        Job("mail", 1, **options)
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


DEDUPLICATING: dict[str, Callable[[Session, Any], Any]] = {
    "Job": lambda session, key: session.add(Job("mail", 1, deduplication_key=key)),
    "handler.enqueue": lambda session, key: mail.enqueue(session, 1, deduplication_key=key),
    "handler.enqueue_many": lambda session, key: mail.enqueue_many(session, [1], deduplicate_by=lambda _: key),
    "enqueue": lambda session, key: enqueue(session, mail.job(1), deduplicate=key),
    "enqueue_many": lambda session, key: enqueue_many(session, [mail.job(1)], deduplicate_by=lambda _: key),
    "Deduplicate": lambda session, key: enqueue(session, mail.job(1), deduplicate=Deduplicate.debounce(key)),
}
UNUSABLE: dict[str, Any] = {
    "surrogate": SURROGATE,
    "characters": "x" * 501,
    "bytes": "\U0001f600" * 251,
    "100 kB": "x" * 100_000,
    "NUL": "a\0b",
    "empty": "",
    "bytes object": b"key",
    "number": 7,
}


@pytest.mark.slow
@pytest.mark.parametrize("key", UNUSABLE.values(), ids=UNUSABLE.keys())
@pytest.mark.parametrize("write", DEDUPLICATING.values(), ids=DEDUPLICATING.keys())
def test_an_unusable_deduplication_key_is_refused_by_name_before_anything_is_written(
    write: Callable[[Session, Any], Any], key: Any, session: Session
) -> None:
    with pytest.raises((InvalidJobError, InvalidOptionError)) as refused:
        write(session, key)
    assert len(str(refused.value)) < 500
    if isinstance(refused.value, InvalidOptionError):
        assert refused.value.option == "key"
    elif isinstance(refused.value, InvalidJobError) and isinstance(key, str):
        assert refused.value.field.removeprefix("payloads[0].").removeprefix("new[0].") == "deduplication_key"
    if write is DEDUPLICATING["handler.enqueue_many"]:
        session.rollback()  # the error ended its COPY
    assert session.scalars(select(Job)).all() == []  # nor is the transaction aborted


def test_the_longest_deduplication_key_is_usable_in_each_way(session: Session) -> None:
    longest = "".join(chr(0x4E00 + number * 37 % 20_000) for number in range(333))  # 999 bytes that do not compress
    for number, write in enumerate(DEDUPLICATING.values()):
        write(session, f"{number}{longest}")
    session.commit()
    assert len(session.scalars(select(Job)).all()) == len(DEDUPLICATING)


BY_SQL: dict[str, Callable[[Session, str, str], Any]] = {
    "INSERT": lambda session, field, key: session.execute(
        text(
            f"INSERT INTO job (id, chain_id, type_name, chain_type_name, {field}) "
            "SELECT id, id, 'mail', 'mail', :key FROM gen_random_uuid() AS id"
        ),
        {"key": key},
    ),
    "UPDATE": lambda session, field, key: session.execute(
        update(Job).where(Job.id == mail.enqueue(session, 1)).values({field: key})
    ),
}


@pytest.mark.parametrize("key", ["x" * 501, "\U0001f600" * 251, ""], ids=["characters", "bytes", "empty"])
@pytest.mark.parametrize("field", ["deduplication_key", "ordering_key"])
@pytest.mark.parametrize("write", BY_SQL.values(), ids=BY_SQL.keys())
def test_an_unusable_key_violates_the_constraint_of_its_name_in_sql(
    write: Callable[[Session, str, str], Any], field: str, key: str, session: Session
) -> None:
    with pytest.raises(IntegrityError, match=f"ck_job_{field}"):
        write(session, field, key)


@pytest.mark.slow
@pytest.mark.parametrize("factory_value", ["x" * 501, SURROGATE, 7], ids=["characters", "surrogate", "number"])
def test_an_unusable_id_of_the_factory_is_refused_by_copy_as_by_the_constructor(factory_value: Any, engine: Engine) -> None:
    class Base(DeclarativeBase): ...

    ids = iter(["the first", "the second", factory_value])

    class MadeJob(JobMixin[str], Base, queue_prefix="made_", queue_id_factory=lambda: next(ids)): ...

    Base.metadata.create_all(engine)
    registry = JobQueue(MadeJob)

    @registry.handler("mail")
    def made_mail(number: int) -> None: ...

    with Session(engine) as session:
        with pytest.raises(InvalidJobError, match=r"^payloads\[1\]\.id: "):
            made_mail.enqueue_many(session, [1, 2])  # the first id is that of the job that checks the options
        ids = iter([factory_value])
        with pytest.raises(InvalidJobError, match=r"^id: "):
            made_mail.job(1)
    Base.metadata.drop_all(engine)


def test_a_surrogate_in_the_settings_of_a_schedule_is_refused() -> None:
    with pytest.raises((InvalidOptionError, InvalidJobError), match="fairness_key"):
        jobs.cron("@daily", name="a", fairness_key=SURROGATE)(tick)

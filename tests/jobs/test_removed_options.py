"""An option that was removed is refused with its replacement, wherever people try it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session

from sa_jobqueue import Job, JobMixin, JobQueue
from sa_jobqueue.errors import InvalidJobError, InvalidOptionError

jobs = JobQueue()


@jobs.handler("deliver")
def deliver(event: str) -> None: ...


SKIPS: Any = {"skip_while_retrying": True}


@pytest.mark.parametrize(
    "use",
    [
        lambda session: Job("deliver", "sent", **SKIPS),
        lambda session: deliver.job("sent", **SKIPS),
        lambda session: deliver.continuation("sent", **SKIPS),
        lambda session: deliver.enqueue(session, "sent", **SKIPS),
        lambda session: deliver.enqueue_many(session, ["sent"], **SKIPS),
        lambda session: jobs.handler("other", **SKIPS),
    ],
    ids=["Job", "job", "continuation", "enqueue", "enqueue_many", "handler"],
)
def test_skip_while_retrying_is_refused_with_its_replacement(engine: Engine, use: Callable[[Session], object]) -> None:
    with Session(engine) as session, pytest.raises((InvalidJobError, InvalidOptionError)) as refused:
        use(session)
    assert str(refused.value) == (
        "skip_while_retrying: is no option: a job that waits for a retry holds its ordering key. "
        "Set max_attempts, or a retry policy that gives up: a dead job releases its key"
    )


def test_a_column_of_the_application_may_have_the_name_of_a_removed_option() -> None:
    class Base(DeclarativeBase):
        pass

    class Delivery(JobMixin[UUID], Base):
        skip_while_retrying: Mapped[bool | None]

    assert Delivery("deliver", "sent", **SKIPS).skip_while_retrying is True

"""An option that was removed is refused with its replacement, wherever people try it."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from datetime import timedelta
from inspect import signature
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session

from sa_jobqueue import Job, JobMixin, JobQueue
from sa_jobqueue.errors import InvalidJobError, InvalidOptionError
from sa_jobqueue.settings import QueueSettings, TypeSettings

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


@pytest.mark.parametrize(
    "use",
    [
        lambda settings: QueueSettings("mail", **settings),
        lambda settings: TypeSettings(type_name="send", **settings),
        lambda settings: jobs.queue("mail", **settings),
        lambda settings: replace(QueueSettings("mail"), **settings),
    ],
    ids=["QueueSettings", "TypeSettings", "queue", "replace"],
)
def test_rate_algorithm_is_refused_with_its_replacement(use: Callable[[Any], object]) -> None:
    with pytest.raises(InvalidOptionError) as refused:
        use({"rate_limit": 100, "rate_period": timedelta(minutes=1), "rate_algorithm": "sliding_window"})
    assert str(refused.value) == (
        "rate_algorithm: is no option: every rate is a token bucket, which starts at most rate_limit and rate_burst "
        "together in any rate_period. For at most N in any period, set rate_limit to N - 1 and rate_burst to 1"
    )


def test_settings_keep_their_signature_and_can_be_copied() -> None:
    settings = QueueSettings("mail", rate_limit=9, rate_period=timedelta(minutes=1), rate_burst=1)
    assert list(signature(QueueSettings).parameters)[:2] == ["name", "fairness_key"]
    assert pickle.loads(pickle.dumps(settings)) == copy(settings) == settings


def test_a_column_of_the_application_may_have_the_name_of_a_removed_option() -> None:
    class Base(DeclarativeBase):
        pass

    class Delivery(JobMixin[UUID], Base):
        skip_while_retrying: Mapped[bool | None]

    assert Delivery("deliver", "sent", **SKIPS).skip_while_retrying is True

"""The chains that a job may wait for, and how a wrong argument is named."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy.orm import DeclarativeBase

from sa_jobqueue import Job, JobMixin
from sa_jobqueue.errors import InvalidJobError
from sa_jobqueue.ids import uuid7
from sa_jobqueue.models import WaitFor


class Base(DeclarativeBase):
    pass


class TextJob(JobMixin[str], Base, queue_prefix="text_"):
    pass


@pytest.mark.parametrize("blockers", ["text", b"bytes", 7, uuid7(), Job("a"), WaitFor(uuid7())])
def test_blockers_that_are_not_a_list_are_refused(blockers: Any) -> None:
    with pytest.raises(InvalidJobError, match=r"^blockers: must be a list of jobs, chains, ids or WaitFor"):
        Job("test", blockers=blockers)


@pytest.mark.parametrize("wrong", ["7", 7, None, object(), Job, WaitFor(None), TextJob("a"), Job("a").__table__])
def test_a_blocker_that_is_not_a_chain_is_refused_by_its_index(wrong: Any) -> None:
    with pytest.raises(InvalidJobError, match=r"^blockers\[1\]: must be a job, a chain, the UUID of one, or WaitFor"):
        Job("test", blockers=[uuid7(), wrong])


def test_a_queue_with_text_ids_accepts_text_blockers() -> None:
    job = TextJob("test", blockers=["a", TextJob("x", id="b")])
    assert [blocker.chain_id for blocker in job._blockers] == ["a", "b"]
    with pytest.raises(InvalidJobError, match=r"^blockers\[0\]: must be a job, a chain, the str of one, or WaitFor"):
        TextJob("test", blockers=[uuid7()])


@pytest.mark.parametrize("again", [lambda job: job, lambda job: job.id, lambda job: WaitFor(job, on_failure="fail")])
def test_a_repeated_blocker_is_refused_with_both_indexes(again: Any) -> None:
    job = Job("a")
    with pytest.raises(InvalidJobError, match=r"^blockers\[2\]: is the chain of blockers\[0\] again"):
        Job("test", blockers=[job, uuid7(), again(job)])


def test_an_unknown_failure_policy_error_lists_the_known_ones() -> None:
    with pytest.raises(InvalidJobError, match=r"^on_failure: must be one of wait, fail, continue, got 'dies'"):
        WaitFor(uuid7(), on_failure="dies")  # type: ignore[arg-type]

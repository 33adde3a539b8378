"""The chains that a job may wait for, and how a wrong argument is named."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from sqlalchemy.orm import DeclarativeBase

from sa_jobqueue import Job, JobMixin
from sa_jobqueue.errors import InvalidJobError
from sa_jobqueue.ids import uuid7
from sa_jobqueue.models import WaitFor
from sa_jobqueue.models.waits import waits


class Base(DeclarativeBase):
    pass


class TextJob(JobMixin[str], Base, queue_prefix="text_"):
    pass


def chain_ids(job: Job) -> list[Any]:
    return [one.chain_id for one in job._blockers]


def test_a_job_an_id_and_a_wait_name_a_chain_in_the_order_given() -> None:
    one, two, three = Job("a"), uuid7(), Job("c")
    job = Job("test", blockers=(given for given in (three, two, WaitFor(one, on_failure="fail"))))
    assert chain_ids(job) == [three.id, two, one.id]
    assert [wait.on_failure for wait in job._blockers] == ["wait", "wait", "fail"]


def test_a_continuation_stands_for_its_chain() -> None:
    job, root = Job("test"), uuid7()
    job.chain_id = root
    assert WaitFor(job).chain_id == root


def test_a_job_without_blockers_has_none() -> None:
    assert chain_ids(Job("test")) == chain_ids(Job("test", blockers=[])) == []


@pytest.mark.parametrize("blockers", ["text", b"bytes", 7, uuid7(), Job("a"), WaitFor(uuid7())])
def test_what_is_no_list_is_refused(blockers: Any) -> None:
    with pytest.raises(InvalidJobError, match=r"^blockers: must be a list of jobs, chains, ids or WaitFor"):
        Job("test", blockers=blockers)


@pytest.mark.parametrize("wrong", ["7", 7, None, object(), Job, WaitFor(None), TextJob("a"), Job("a").__table__])
def test_what_is_no_chain_is_named_by_its_place(wrong: Any) -> None:
    with pytest.raises(InvalidJobError, match=r"^blockers\[1\]: must be a job, a chain, the UUID of one, or WaitFor"):
        Job("test", blockers=[uuid7(), wrong])


def test_a_queue_with_text_ids_takes_text() -> None:
    job = TextJob("test", blockers=["a", TextJob("x", id="b")])
    assert [one.chain_id for one in job._blockers] == ["a", "b"]
    with pytest.raises(InvalidJobError, match=r"^blockers\[0\]: must be a job, a chain, the str of one, or WaitFor"):
        TextJob("test", blockers=[uuid7()])


@pytest.mark.parametrize("again", [lambda one: one, lambda one: one.id, lambda one: WaitFor(one, on_failure="fail")])
def test_a_chain_named_twice_is_told_with_both_places(again: Any) -> None:
    one = Job("a")
    with pytest.raises(InvalidJobError, match=r"^blockers\[2\]: is the chain of blockers\[0\] again"):
        Job("test", blockers=[one, uuid7(), again(one)])


def test_an_unknown_policy_is_told_with_the_known_ones() -> None:
    with pytest.raises(InvalidJobError, match=r"^on_failure: must be one of wait, fail, continue, got 'dies'"):
        WaitFor(uuid7(), on_failure="dies")  # type: ignore[arg-type]


def test_waits_keeps_what_is_told() -> None:
    one = WaitFor(uuid7(), on_failure="continue")
    assert waits([one], UUID) == (one,)

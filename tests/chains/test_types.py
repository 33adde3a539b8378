"""Types are checked where jobs are made and where they end: of blockers, of continuations, of outputs."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pydantic
import pytest
from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from sa_jobqueue import (
    AttemptContext,
    Blockers,
    Continuation,
    Job,
    JobQueue,
    JobStatus,
    aio,
    enqueue_many,
    get_chain,
    wait_chain,
)
from sa_jobqueue.errors import InvalidJobError, InvalidOptionError, InvalidPayloadError, UndeclaredContinuationError
from sa_jobqueue.models import WaitFor
from sa_jobqueue.operations import complete_job, lock_chain
from sa_jobqueue.policies.retry import immediately
from sa_jobqueue.types import DeadReason
from tests.fixtures.jobs import Jobs, enqueue
from tests.fixtures.transactions import call
from tests.fixtures.workers import drain

DONE, DEAD, PENDING = JobStatus.COMPLETED, JobStatus.DEAD, JobStatus.PENDING
SECOND = timedelta(seconds=10)

queue = JobQueue()


@dataclass
class Page:
    number: int


@dataclass
class Receipt:
    cents: int


class Note(pydantic.BaseModel):
    text: str


@queue.handler("number")
async def number(n: int) -> int:
    return n


@queue.handler("text")
async def text(n: int) -> str:
    return str(n)


@queue.handler("nothing")
async def nothing() -> None: ...


@queue.handler("untyped")
async def untyped(n: Any) -> Any:
    return n


@queue.handler("page")
async def page(n: int) -> Page:
    return Page(n)


@queue.handler("join")
async def join(parts: Blockers[tuple[int, str]]) -> str:
    return f"{parts.outputs[0]}{parts.outputs[1]}"


@queue.handler("add_up")
async def add_up(counts: Blockers[list[int]]) -> int:
    return sum(counts.outputs)


@queue.handler("wait")
async def wait_only() -> int:
    return 0


@queue.handler("fan_out", retry=immediately, max_attempts=2)
async def fan_out(n: int, ctx: AttemptContext) -> Continuation[int]:
    return ctx.continue_with(add_up, None, blockers=[number.job(n), number.job(n)])


@queue.handler("fan_out_wrong", retry=immediately, max_attempts=2)
async def fan_out_wrong(n: int, ctx: AttemptContext) -> Continuation[int]:
    return ctx.continue_with(add_up, None, blockers=[number.job(n), text.job(n)])


Make = Callable[[], Job]
WRONG: dict[str, tuple[Make, int | None, str, str]] = {
    "missing": (join.job, None, "2", "0"),
    "too few": (lambda: join.job(blockers=[number.job(1)]), None, "2", "1"),
    "too many": (lambda: join.job(blockers=[number.job(1), text.job(2), text.job(3)]), None, "2", "3"),
    "in the wrong order": (lambda: join.job(blockers=[text.job(1), number.job(2)]), 0, "int", "str"),
    "of the wrong kind": (lambda: add_up.job(blockers=[number.job(1), WaitFor(text.job(2))]), 1, "int", "str"),
    "of a dataclass": (lambda: add_up.job(blockers=[page.job(2)]), 0, "int", "Page"),
    "of nothing": (lambda: add_up.job(blockers=[nothing.job()]), 0, "int", "None"),
    "made by name": (lambda: add_up.job(blockers=[queue.job("text", 1)]), 0, "int", "str"),
    "made by the class": (lambda: add_up.job(blockers=[Job("text", 1)]), 0, "int", "str"),
    "of a continuation": (lambda: add_up.continuation(None, blockers=[text.job(1)]).job, 0, "int", "str"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_undeclared_blockers_are_refused_when_the_job_is_created(wrong: str) -> None:
    make, position, expected, arguments = WRONG[wrong]
    with pytest.raises(InvalidJobError) as refused:
        make()
    error = refused.value
    assert error.field == ("blockers" if position is None else f"blockers[{position}]")
    assert expected in str(error)
    assert arguments in str(error)


@pytest.mark.parametrize("way", ["add", "enqueue_many", "chain", "new id"])
def test_blockers_given_by_id_are_checked_at_flush(engine: Engine, jobs: Jobs, way: str) -> None:
    good, bad = enqueue(engine, number.job(1), text.job(2))
    another = text.job(3)

    def write(session: Session) -> None:
        match way:
            case "add":
                session.add(add_up.job(blockers=[good, bad]))
            case "enqueue_many":
                enqueue_many(session, [add_up.job(blockers=[good, WaitFor(bad)])])
            case "chain":
                add_up.job(blockers=[good, get_chain(session, bad)])
            case "new id":
                session.add_all([another, add_up.job(blockers=[good, another.id])])
        session.flush()

    with Session(engine) as session, pytest.raises(InvalidJobError, match=r"blockers\[1\]: 'add_up' takes .* with str$"):
        write(session)
    assert set(jobs.statuses()) == {good, bad}


async def test_blockers_of_matching_or_unknown_type_are_accepted(engine: Engine) -> None:
    feature = JobQueue()

    @feature.handler("of_a_feature")
    async def of_a_feature(parts: Blockers[list[int]]) -> int:
        return len(parts.outputs)

    both = JobQueue()
    both.include(feature)
    both.include(queue)
    first, unknown, known_chain = enqueue(engine, number.job(1), Job("unheard_of"), text.job(1))
    accepted = [
        add_up.job(),
        add_up.job(blockers=[first, number.job(2), untyped.job(3)]),
        join.job(blockers=(number.job(4), text.job(5))),
        wait_only.job(blockers=[text.job(1), page.job(1)]),
        of_a_feature.job(blockers=[first, number.job(1)]),
        fan_out.job(6),
    ]
    ids = enqueue(engine, *accepted)
    enqueue(engine, add_up.job(blockers=[unknown]))  # blockers of an unknown type are not checked
    with pytest.raises(InvalidJobError):  # what includes a registry knows the types of the others
        enqueue(engine, of_a_feature.job(blockers=[known_chain]))
    await drain(both, engine)
    with Session(engine) as session:
        assert [get_chain(session, job_id).output for job_id in ids] == [0, 6, "45", 0, 2, 12]


async def test_blockers_created_by_handler_blocker_are_type_checked(engine: Engine) -> None:
    seven = number.blocker(7, on_failure="fail", priority=3)
    assert (seven.chain.type_name, seven.chain.priority, seven.on_failure) == ("number", 3, "fail")
    with pytest.raises(InvalidJobError) as refused:
        join.job(blockers=[text.blocker(1), number.blocker(2)])  # type: ignore[list-item]
    assert refused.value.field == "blockers[0]"
    with pytest.raises(InvalidPayloadError):
        number.blocker("seven")  # type: ignore[call-overload]
    with pytest.raises(InvalidJobError, match="on_failure"):
        number.blocker(7, on_failure="dies")  # type: ignore[call-overload]

    joined, total = (
        join.job(blockers=(number.blocker(1), text.blocker(2))),
        add_up.job(blockers=[number.blocker(3), seven]),
    )
    ids = enqueue(engine, joined, total)
    await drain(queue, engine)
    with Session(engine) as session:
        assert [get_chain(session, job_id).output for job_id in ids] == ["12", 10]


def test_a_job_with_checked_blockers_is_pickled_and_copied_as_data() -> None:
    job = number.job(1)
    for copied in (pickle.loads(pickle.dumps(job)), copy.copy(job)):
        assert (copied.id, copied.type_name, copied.input) == (job.id, "number", 1)


async def test_a_blocker_output_of_the_wrong_type_is_a_dead_letter_at_once(engine: Engine, jobs: Jobs) -> None:
    wrong = untyped.job("seven")
    (job_id,) = enqueue(engine, add_up.job(blockers=[number.job(1), wrong]))
    await drain(queue, engine)
    assert (jobs.status(job_id), jobs.get(job_id)["attempt"]) == (DEAD, 1)
    (dead_letter,) = jobs.dead_letters()
    assert dead_letter["reason"] == DeadReason.INVALID_INPUT
    assert jobs.get(job_id)["last_error"]["message"].startswith("blockers[1]: ")


async def test_a_continuation_with_blockers_of_the_wrong_type_fails_its_attempt(engine: Engine, jobs: Jobs) -> None:
    (job_id,) = enqueue(engine, fan_out_wrong.job(1))
    await drain(queue, engine)
    assert (jobs.status(job_id), jobs.get(job_id)["last_error"]["type"]) == (DEAD, "sa_jobqueue.errors.InvalidJobError")
    assert jobs.count() == 1


# What a handler may continue with.


@queue.handler("declares_none", retry=immediately, max_attempts=2)
def declares_none(kind: str, ctx: AttemptContext) -> int:
    return ctx.continue_with(number, 7)  # type: ignore[return-value]


@queue.handler("declares_none_with_session", retry=immediately, max_attempts=2)
async def declares_none_with_session(kind: str, ctx: AttemptContext, session: AsyncSession) -> int:
    session.add(number.job(1))
    return ctx.continue_with(number, 7)  # type: ignore[return-value]


@queue.handler("declares_another", retry=immediately, max_attempts=2)
async def declares_another(kind: str, ctx: AttemptContext) -> int | Continuation[int]:
    return ctx.continue_with(text, 7)  # type: ignore[arg-type]


@queue.handler("declares_any")
async def declares_any(kind: str, ctx: AttemptContext) -> Any:
    return ctx.continue_with(number, 7)


@queue.handler("declares_bare")
async def declares_bare(kind: str, ctx: AttemptContext) -> Continuation:  # type: ignore[type-arg]
    return ctx.continue_with(number, 7)


@queue.handler("unannotated")
async def unannotated(kind: str, ctx: AttemptContext):  # type: ignore[no-untyped-def]
    return ctx.continue_with(number, 7)


@pytest.mark.parametrize(
    "handler", [declares_none, declares_none_with_session, declares_another], ids=lambda parameter: parameter.name
)
async def test_an_undeclared_continuation_fails_its_attempt(engine: Engine, jobs: Jobs, handler: Any) -> None:
    (job_id,) = enqueue(engine, handler.job("x"))
    await drain(queue, engine)
    job = jobs.get(job_id)
    assert (job["status"], job["attempt"], jobs.count()) == (DEAD, 2, 1)
    assert job["last_error"]["type"] == f"sa_jobqueue.errors.{UndeclaredContinuationError.__name__}"
    assert "-> int" in job["last_error"]["message"]
    assert [dead_letter["reason"] for dead_letter in jobs.dead_letters()] == [DeadReason.EXHAUSTED]


@pytest.mark.slow
@pytest.mark.parametrize("handler", [declares_any, declares_bare, unannotated], ids=lambda parameter: parameter.name)
async def test_a_handler_without_a_specific_return_type_may_continue_with_any_type(engine: Engine, handler: Any) -> None:
    (job_id,) = enqueue(engine, handler.job("x"))
    await drain(queue, engine)
    assert call(engine, get_chain, job_id).output == 7


# Completing without a worker.


@queue.handler("approve")
def approve(n: int) -> Page | Continuation[int]:
    return Page(n)


def test_complete_job_checks_and_encodes_the_output_like_the_handler(engine: Engine, jobs: Jobs) -> None:
    ids = enqueue(engine, *(approve.job(n, delay=SECOND) for n in range(6)))
    with Session(engine) as session, session.begin():
        assert complete_job(session, ids[0], Page(7), handler=approve).output == {"number": 7}
        assert complete_job(session, ids[1], {"number": "8"}, handler=approve).output == {"number": 8}
        with pytest.raises(InvalidPayloadError, match=r"result: .*an instance of Page"):
            complete_job(session, ids[2], Receipt(9), handler=approve)
        with pytest.raises(InvalidOptionError, match=r"is of type 'approve', not 'text'"):
            complete_job(session, ids[2], "seven", handler=text)
        with pytest.raises(UndeclaredContinuationError, match="'approve' returned a continuation with 'text'"):
            complete_job(session, ids[2], text.continuation(1), handler=approve)
        complete_job(session, ids[3], number.continuation(1), handler=approve)
        # Without the handler, objects that define their own serialization.
        assert complete_job(session, ids[4], Receipt(5)).output == {"cents": 5}
        assert complete_job(session, lock_chain(session, ids[5]).id, Note(text="yes")).output == {"text": "yes"}
    assert [jobs.status(one) for one in ids] == [DONE, DONE, PENDING, DONE, DONE, DONE]


# Reading outputs.


async def test_an_output_is_not_decoded_as_another_handlers(engine: Engine, async_engine: AsyncEngine) -> None:
    alone, chain = enqueue(engine, number.job(7), declares_any.job("x"))
    await drain(queue, engine)
    with Session(engine) as session:
        assert number.output(get_chain(session, alone)) == 7
        assert declares_any.output(get_chain(session, chain)) == 7
        assert number.output(get_chain(session, chain)) == 7  # the chain ended with it
        with pytest.raises(InvalidOptionError, match=r"began with 'number', not with 'text'"):
            text.output(get_chain(session, alone))
    assert wait_chain(engine, alone, timeout=SECOND, output=number).output == 7
    assert wait_chain(engine, chain, timeout=SECOND, output=number).output == 7
    with pytest.raises(InvalidOptionError, match=r"began with 'declares_any' and ended with 'number', not with 'text'"):
        wait_chain(engine, chain, timeout=SECOND, output=text)
    with pytest.raises(InvalidOptionError, match="'text'"):
        await aio.wait_chain(async_engine, alone, timeout=SECOND, output=text)
    result = wait_chain(engine, alone, timeout=SECOND)
    with pytest.raises(InvalidOptionError, match="'text'"):
        text.output(result)

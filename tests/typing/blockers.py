"""Type checker results for jobs whose blockers are made by `Handler.blocker`. Read by `test_types.py`, not run."""

# mypy: disable-error-code="empty-body"

from __future__ import annotations

from typing import Any, assert_type
from uuid import UUID

from sqlalchemy.orm import Session

from sa_jobqueue import AttemptContext, Blockers, Continuation, Job, JobQueue
from sa_jobqueue.models import WaitFor
from sa_jobqueue.registry import Handler
from tests.typing import jobs_of

jobs = JobQueue()


@jobs.handler("count")
def count(page: str) -> int: ...


@jobs.handler("spell")
async def spell(page: str) -> str: ...


@jobs.handler("tick")
def tick() -> int: ...


@jobs.handler("anything")
def anything(page: str) -> Any: ...


@jobs.handler("goes_on")
def goes_on(page: str, ctx: AttemptContext) -> int | Continuation[str]: ...


@jobs.handler("add_up")
def add_up(counts: Blockers[list[int]], session: Session) -> int: ...


@jobs.handler("add_some")
async def add_some(counts: Blockers[list[int | None]]) -> int: ...


@jobs.handler("pair")
async def pair(parts: Blockers[tuple[int, str]]) -> int: ...


@jobs.handler("three")
def three(parts: Blockers[tuple[int, str, int]], ctx: AttemptContext) -> int | Continuation[str]: ...


@jobs.handler("total")
def total(name: dict[str, Any], counts: Blockers[list[int]]) -> int: ...


assert_type(count.blocker("a"), WaitFor[int])
assert_type(tick.blocker(), WaitFor[int])
assert_type(goes_on.blocker("a"), WaitFor[int | str])
assert_type(count.blocker("a", on_failure="continue"), WaitFor[int | None])
assert_type(jobs_of(three), Handler[Blockers[tuple[int, str, int]], int | str, Job])
assert_type(jobs_of(total), Handler[dict[str, Any], int, Job])
count.blocker(7)  # E: "blocker" of "Handler"
count.blocker("a", on_failure="dies")  # E: "blocker" of "Handler"

# Any number of one kind.
pages = [count.blocker(page) for page in "abc"]
assert_type(add_up.job(blockers=pages), Job)
add_up.job(blockers=[count.blocker("a"), tick.blocker(), anything.blocker("c")], priority=3)
add_some.job(blockers=[count.blocker("a", on_failure="continue"), count.blocker("b")])
add_up.job(blockers=[tick.blocker(), spell.blocker("b")])  # E: "WaitFor[str]"; expected "WaitFor[int]"
add_up.job(blockers=[goes_on.blocker("a")])  # E: incompatible type "WaitFor[int | str]"; expected "WaitFor[int]"
add_up.job(blockers=[count.blocker("a", on_failure="continue")])  # E: "WaitFor[int | None]"

# A tuple: as many, in this order.
pair.job(blockers=(count.blocker("a"), spell.blocker("b")))
three.job(blockers=(count.blocker("a"), spell.blocker("b"), tick.blocker()))
pair.job(blockers=(spell.blocker("b"), count.blocker("a")))  # E: expected "tuple[WaitFor[int], WaitFor[str]]"
pair.job(blockers=(count.blocker("a"),))  # E: "job" of "Handler"
pair.job(blockers=(count.blocker("a"), spell.blocker("b"), tick.blocker()))  # E: "job" of "Handler"
pair.job(blockers=pages)  # E: "job" of "Handler"
three.job(blockers=(count.blocker("a"), spell.blocker("b")))  # E: "tuple[WaitFor[int], WaitFor[str], WaitFor[int]]"
three.job(blockers=(count.blocker("a"), tick.blocker(), spell.blocker("b")))  # E: "job" of "Handler"


# What is of no known type is accepted as ever, alone and, as a `WaitFor`, beside what is.
def untyped(job: Job, chain_id: UUID) -> None:
    add_up.job(blockers=[job, job.chain, chain_id, str(chain_id), WaitFor(job, on_failure="continue")])
    add_up.job(blockers=[spell.job("b")])
    pair.job(blockers=[job, WaitFor(chain_id)])
    count.job("after", blockers=[job])
    add_up.job(blockers=[count.blocker("a"), WaitFor(job)])
    pair.job(blockers=(count.blocker("a"), WaitFor(chain_id)))
    waiting = WaitFor(job)
    add_up.job(blockers=[waiting])
    jobs["add_up"].job(blockers=[job])


# A handler without the annotation takes any. After a payload it is checked at run time only.
count.job("after", blockers=pages)
tick.job(blockers=[spell.blocker("b")])
assert_type(total.job({}, blockers=[spell.blocker("b")]), Job)
total.job(7, blockers=pages)  # E: incompatible type "int"; expected "dict[str, Any]"

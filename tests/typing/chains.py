"""Type checker results for continuations and for jobs that wait for chains. Read by `test_types.py`, not run."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, assert_type

from sqlalchemy import Engine
from sqlalchemy.orm import Session

from sa_jobqueue import AttemptContext, Blockers, Continuation, Job, JobQueue, get_chain, wait_chain
from sa_jobqueue.models import WaitFor
from sa_jobqueue.operations import complete_job, lock_chain
from sa_jobqueue.registry import Handler
from sa_jobqueue.types import ChainResult
from tests.typing import jobs_of

jobs = JobQueue()


@dataclass
class Page:
    number: int


@jobs.handler("last")
def last(page: Page) -> str:
    return "done"


@jobs.handler("tick")
def tick() -> bytes | None: ...


# The output's type is what comes out at the end of the chain.
@jobs.handler("middle")
async def middle(page: Page, ctx: AttemptContext) -> int | Continuation[str]:
    assert_type(ctx.continue_with(last, page, delay=timedelta(minutes=5)), Continuation[str])
    return ctx.continue_with(last, page) if page.number else 0


@jobs.handler("first")
def first(page: Page, session: Session, ctx: AttemptContext) -> Continuation[int | str]:
    return ctx.continue_with(middle, page, blockers=[last.job(page), WaitFor(middle.job(page), on_failure="fail")])


@jobs.handler("loop")
def loop(page: Page, ctx: AttemptContext) -> int | Continuation[int | None] | None:
    return ctx.continue_with(loop, page)


@jobs.handler("alone")
async def alone(ctx: AttemptContext) -> Continuation[bytes | None]:
    return ctx.continue_with(tick, None)


@jobs.handler("document")
def document(page: dict[str, Any]) -> dict[str, Any]:
    return page


@jobs.handler("anything")
def anything(page: Page) -> Any: ...


assert_type(jobs_of(last), Handler[Page, str, Job])
assert_type(jobs_of(middle), Handler[Page, int | str, Job])
assert_type(jobs_of(first), Handler[Page, int | str, Job])
assert_type(jobs_of(loop), Handler[Page, int | None, Job])
assert_type(jobs_of(alone), Handler[AttemptContext, bytes | None, Job])
assert_type(jobs_of(document), Handler[dict[str, Any], dict[str, Any], Job])
assert_type(jobs_of(anything), Handler[Page, Any, Job])
anything.job(7)  # E: incompatible type "int"; expected "Page"


# What is handed on must fit the next handler, and what is returned the annotation.
@jobs.handler("wrong")
def wrong(page: Page, ctx: AttemptContext) -> int | Continuation[int]:
    if page.number:
        ctx.continue_with(last, 7)  # E: Cannot infer value of type parameter "NextInT"
        ctx.continue_with(tick, page)  # E: Cannot infer value of type parameter "NextInT"
        return ctx.continue_with(last, page)  # E: incompatible type "Handler[Page, str, Job,
    return "text"  # E: Incompatible return value type (got "str", expected "int | Continuation[int]")


# A continuation that is not declared is no output.
@jobs.handler("undeclared")
def undeclared(page: Page, ctx: AttemptContext) -> int:
    return ctx.continue_with(last, page)  # E: Incompatible return value type (got "Continuation[str]", expected "int")


last.continuation(7)  # E: Argument 1 to "continuation" of "Handler" has incompatible type "int"; expected "Page"
first.job(Page(1), blockers=7)  # E: "blockers" to "job" of "Handler" has incompatible type "int"
WaitFor(last.job(Page(1)), on_failure="dies")  # E: "on_failure" to "WaitFor" has incompatible type


# The outputs of what a job waited for, all together.
@jobs.handler("merge")
def merge(page: Page, parts: Blockers[list[str]]) -> str:
    assert_type(parts.outputs, list[str])
    parts.outputs[0] + 1  # E: Unsupported operand types for +
    return ",".join(parts.outputs)


@jobs.handler("join")
async def join(parts: Blockers[tuple[int, str | None]]) -> int:
    number, name = parts.outputs
    assert_type(name, str | None)
    return number


assert_type(jobs_of(merge), Handler[Page, str, Job])
assert_type(join.job(blockers=[last.job(Page(1))]), Job)
join.job(7)  # E: No overload variant of "job" of "Handler" matches argument type "int"


@jobs.handler("goes_on")
def goes_on(n: int, ctx: AttemptContext) -> Continuation[int] | Continuation[bytes | None]:
    if n:
        return ctx.continue_with(alone, None)
    return ctx.continue_with(join, None, blockers=[last.job(Page(1)), last.job(Page(2)).id])


assert_type(jobs_of(goes_on), Handler[int, int | bytes | None, Job])


def read(session: Session, engine: Engine, job: Job) -> None:
    chain = get_chain(session, job.chain_id)
    assert chain is not None
    assert_type(middle.output(chain), int | str)
    assert_type(jobs.output(chain), Any)
    assert_type(wait_chain(engine, job, timeout=timedelta(seconds=1), output=middle), ChainResult[int | str])
    middle.output(job)  # E: Argument 1 to "output" of "Handler" has incompatible type "Job"
    complete_job(session, lock_chain(session, job.id).id, last.continuation(Page(1)))

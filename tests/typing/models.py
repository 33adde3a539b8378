"""Type checker results for an application's own `Job` classes. Read by `test_types.py`, not run."""

from __future__ import annotations

from datetime import datetime
from typing import Any, assert_type
from uuid import UUID

from sqlalchemy import ForeignKey, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, relationship

from sa_jobqueue import Job, JobMixin, JobQueue, JobStatus, aio, enqueue_many, get_job, list_jobs, operations
from sa_jobqueue.models import ChainMixin


class Base(DeclarativeBase):
    pass


class MailJob(JobMixin, Base, queue_prefix="mail_"):
    """A queue with a column of the application's own."""

    tenant: Mapped[str | None]


class TextJob(JobMixin[str], Base, queue_prefix="text_"):
    """A queue with text ids."""


class Delivery(Base):
    """A row of the application that knows its job."""

    __tablename__ = "delivery"

    id: Mapped[int] = mapped_column(primary_key=True)
    job_id: Mapped[UUID] = mapped_column(ForeignKey(MailJob.id))
    job: Mapped[MailJob] = relationship()


mails = JobQueue(MailJob)
assert_type(mails, JobQueue[MailJob])


@mails.handler("send")
def send(to: str) -> None: ...


assert_type(send.job("a@b", tenant="t"), MailJob)
assert_type(mails.job("send", "a@b"), MailJob)

job = MailJob("send", {"to": "a@b"}, tenant="t")
assert_type(job.id, UUID)
assert_type(job.status, JobStatus)
assert_type(job.scheduled_at, datetime)
assert_type(TextJob("send").id, str)
assert_type(Job("send").id, UUID)
assert_type(job.chain, ChainMixin[UUID])
assert_type(job.chain.status, JobStatus)
assert_type(job.blocked_by[0].chain.last_job_id, UUID)
assert_type(TextJob("send").chain.id, str)
select(MailJob).join(MailJob.chain).where(MailJob.Chain.status == JobStatus.DEAD)
Delivery(job=job)
assert_type(Delivery(job=job).job, MailJob)
select(MailJob).join(Delivery, Delivery.job_id == MailJob.id).where(MailJob.tenant == "t")

MailJob()  # E: Missing positional argument "type_name"
MailJob("send", priority="high")  # E: "priority" to "MailJob" has incompatible type "str"
TextJob("send", id=UUID(int=0))  # E: "id" to "TextJob" has incompatible type "UUID"; expected "str | None"
JobQueue(Delivery)  # E: Value of type variable "JobT" of "JobQueue" cannot be "Delivery"


def listings(session: Session) -> None:
    assert_type(get_job(session, job.id), Job)
    assert_type(get_job(session, job.id, model=MailJob), MailJob)
    assert_type(operations.lock_chain(session, job.id, model=MailJob), MailJob)
    assert_type(operations.complete_job(session, job.id, 7, model=MailJob), MailJob)
    assert_type(operations.complete_job(session, job.id, None, handler=send), MailJob)
    assert_type(list_jobs(session), operations.Page[Job])
    assert_type(list_jobs(session, model=MailJob), operations.Page[MailJob])
    assert_type(list_jobs(session, model=MailJob).items[0].tenant, str | None)
    assert_type(list_jobs(session, columns=["id"], model=MailJob), operations.Page[MailJob])
    assert_type(operations.list_chain_jobs(session, job.id, model=MailJob), operations.Page[MailJob])
    assert_type(operations.list_blocked_jobs(session, job.id, model=MailJob), operations.Page[MailJob])
    assert_type(operations.list_chains(session).items[0].status, JobStatus)
    assert_type(operations.list_blockers(session, job.id).items[0].index, int)
    print(get_job(session, job.id).tenant)  # E: "Job" has no attribute "tenant"
    get_job(session, job.id, model=Delivery)  # E: Value of type variable "JobT" of "get_job" cannot be "Delivery"


async def listings_async(session: AsyncSession) -> None:
    assert_type(await aio.get_job(session, job.id), Job)
    assert_type(await aio.get_job(session, job.id, model=MailJob), MailJob)
    assert_type(await aio.lock_chain(session, job.id), Job)
    assert_type(await aio.lock_chain(session, job.id, model=MailJob), MailJob)
    assert_type(await aio.complete_job(session, job.id, None, handler=send), MailJob)
    assert_type(await aio.list_jobs(session), operations.Page[Job])
    assert_type(await aio.list_jobs(session, model=MailJob), operations.Page[MailJob])
    assert_type(await aio.list_jobs(session, columns=["id"], model=MailJob), operations.Page[MailJob])
    assert_type(await aio.list_chain_jobs(session, job.id, model=MailJob), operations.Page[MailJob])
    assert_type(await aio.list_blocked_jobs(session, job.id, columns=["id"]), operations.Page[Job])
    assert_type(await aio.list_chains(session, limit=5), operations.Page[ChainMixin[Any]])
    await aio.list_jobs(session, limit="5")  # E: incompatible type "str"; expected "int"
    await aio.list_jobs(session, hue="red")  # E: Unexpected keyword argument "hue"
    await aio.get_job(job.id)  # E: Too few arguments # E: incompatible type "UUID"; expected "AsyncSession"
    await aio.get_job(session, job.id, model=Delivery)  # E: cannot be "Delivery"
    print((await aio.get_job(session, job.id)).tenant)  # E: "Job" has no attribute "tenant"


def use(session: Session) -> list[object]:
    session.add(job)
    return enqueue_many(session, [job, job])


async def use_async(session: AsyncSession) -> list[object]:
    session.add(job)
    return await aio.enqueue_many(session, [job, job])

"""What a type checker says of an application's own `Job` classes. Read by `test_types.py`, not run."""

from __future__ import annotations

from datetime import datetime
from typing import assert_type
from uuid import UUID

from sqlalchemy import ForeignKey, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, relationship

from sa_jobqueue import Job, JobMixin, JobQueue, JobStatus, aio, enqueue_many
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


def use(session: Session) -> list[object]:
    session.add(job)
    return enqueue_many(session, [job, job], model=MailJob)


async def use_async(session: AsyncSession) -> list[object]:
    session.add(job)
    return await aio.enqueue_many(session, [job, job])

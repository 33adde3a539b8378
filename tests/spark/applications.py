"""An application whose queue lies elsewhere, for option `app`."""

from __future__ import annotations

from sqlalchemy.orm import DeclarativeBase, Mapped

from sa_jobqueue import JobMixin, JobQueue
from tests.fixtures.schemas import NASTY_SCHEMA


class Base(DeclarativeBase):
    """The application's base."""


class MailJob(JobMixin[str], Base, queue_schema=NASTY_SCHEMA, queue_prefix="mail_", queue_pipeline=True):
    """Its queue, with text ids."""


class TenantJob(JobMixin, Base, queue_schema="tenants", queue_pipeline=True):
    """A queue with columns of the application."""

    tenant: Mapped[int | None]
    region: Mapped[str | None]


jobs = JobQueue(model=MailJob)

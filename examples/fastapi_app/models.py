"""The shop's tables, the queue among them."""

from uuid import UUID

from sqlalchemy import ForeignKey
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

from sa_jobqueue import JobMixin


class Base(DeclarativeBase):
    pass


class Job(JobMixin, Base):
    """The shop's queue."""


class Order(Base):
    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str]
    tracking: Mapped[str | None]
    job_id: Mapped[UUID | None] = mapped_column(ForeignKey(Job.id, ondelete="SET NULL"))
    job: Mapped[Job | None] = relationship()

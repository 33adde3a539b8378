"""The demo's application: two tables, a queue beside them, and one handler."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Final
from uuid import UUID

from sqlalchemy import ForeignKey
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, relationship

from sa_jobqueue import Backoff, JobMixin, JobQueue
from sa_jobqueue.cli.demo import files

SCHEMA: Final = "sa_jobqueue_demo"


class Base(DeclarativeBase):
    """The application's own base."""


class Job(JobMixin, Base, queue_schema=SCHEMA):
    """The application's queue, in its own metadata."""


class SourceFile(Base):
    """A file to be counted, and the job that counts it: one transaction adds both."""

    __tablename__ = "source_file"
    __table_args__ = {"schema": SCHEMA}  # noqa: RUF012 - as SQLAlchemy declares it

    path: Mapped[str] = mapped_column(primary_key=True)
    job_id: Mapped[UUID] = mapped_column(ForeignKey(Job.id))
    job: Mapped[Job] = relationship(lazy="raise")


class FileCounts(Base):
    """What a job counted. Its key is not the path: a job that counted twice would show."""

    __tablename__ = "file_counts"
    __table_args__ = {"schema": SCHEMA}  # noqa: RUF012 - as SQLAlchemy declares it

    id: Mapped[int] = mapped_column(primary_key=True)
    path: Mapped[str] = mapped_column(ForeignKey(SourceFile.path))
    lines: Mapped[int]
    functions: Mapped[int]
    classes: Mapped[int]
    imports: Mapped[int]


jobs = JobQueue(Job)


@dataclass(frozen=True, slots=True)
class CountFile:
    """The payload: which file, below the standard library's directory."""

    path: str


@jobs.handler(
    "count_file",
    queue="files",
    max_attempts=3,
    retry=Backoff(base=timedelta(milliseconds=200), cap=timedelta(seconds=1)),
)
def count_file(file: CountFile, session: Session) -> None:
    """Count in one file. What is added to the session is committed with the job's completion, or not at all."""
    counts = files.count(files.library_root() / file.path)
    session.add(FileCounts(path=file.path, **asdict(counts)))

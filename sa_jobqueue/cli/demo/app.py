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
    """The application's declarative base."""


class Job(JobMixin, Base, queue_schema=SCHEMA):
    """The application's queue, in its own metadata."""


class SourceFile(Base):
    """A file, and the job that counts it. Both are added in one transaction."""

    __tablename__ = "source_file"
    __table_args__ = {"schema": SCHEMA}  # noqa: RUF012 - as SQLAlchemy declares it

    path: Mapped[str] = mapped_column(primary_key=True)
    job_id: Mapped[UUID] = mapped_column(ForeignKey(Job.id))
    job: Mapped[Job] = relationship(lazy="raise")


class FileCounts(Base):
    """The counts of a file. The path is not the key, so that a job that ran twice would show."""

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
    """The payload: a path relative to the standard library's directory."""

    path: str


@jobs.handler(
    "count_file",
    queue="files",
    max_attempts=3,
    retry=Backoff(base=timedelta(milliseconds=200), cap=timedelta(seconds=1)),
)
def count_file(file: CountFile, session: Session) -> None:
    """Count in one file. The session commits together with the job's completion."""
    counts = files.count(files.library_root() / file.path)
    session.add(FileCounts(path=file.path, **asdict(counts)))

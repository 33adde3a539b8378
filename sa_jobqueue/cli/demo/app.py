"""The demo's application: two tables, a queue beside them, and one handler that counts in a file."""

from __future__ import annotations

import ast
import sysconfig
from collections import Counter
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final
from uuid import UUID

from sqlalchemy import ForeignKey
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, relationship

from sa_jobqueue import Backoff, JobMixin, JobQueue

SCHEMA: Final = "sa_jobqueue_demo"
LIBRARY: Final = Path(sysconfig.get_path("stdlib"))
"""The directory of the running interpreter's standard library."""
_TRIES: Final = 10


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


@dataclass(frozen=True, slots=True)
class Counts:
    """The counts of one file."""

    lines: int
    functions: int
    classes: int
    imports: int


_RETRY: Final = Backoff(base=timedelta(milliseconds=200), cap=timedelta(seconds=1))


@jobs.handler("count_file", queue="files", max_attempts=3, retry=_RETRY)
def count_file(file: CountFile, session: Session) -> None:
    """Count in one file. The session commits together with the job's completion."""
    session.add(FileCounts(path=file.path, **asdict(count(LIBRARY / file.path))))


def count(path: Path) -> Counts:
    """Parse a file and count in it. Raises: SyntaxError, ValueError or RecursionError if it is not valid Python."""
    source = path.read_bytes()
    kinds = Counter(map(type, ast.walk(_parse(source, path.name))))
    return Counts(
        lines=len(source.splitlines()),
        functions=kinds[ast.FunctionDef] + kinds[ast.AsyncFunctionDef],
        classes=kinds[ast.ClassDef],
        imports=kinds[ast.Import] + kinds[ast.ImportFrom],
    )


def _parse(source: bytes, name: str) -> ast.AST:
    # CPython 3.11 (gh-106905) shares one recursion counter between threads: concurrent parsing, or formatting of a
    # traceback, can raise "AST constructor recursion depth mismatch".
    for _ in range(_TRIES):
        try:
            return ast.parse(source, name)
        except SystemError:
            continue
    return ast.parse(source, name)

"""The demo's application: a table, a queue beside it, and one handler that counts in a file."""

from __future__ import annotations

import ast
import sysconfig
from collections import Counter
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from sqlalchemy import JSON, ForeignKey
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, relationship

from sa_jobqueue import Backoff, JobMixin, JobQueue

SCHEMA: Final = "sa_jobqueue_demo"
LIBRARY: Final = Path(sysconfig.get_path("stdlib"))
"""The directory of the running interpreter's standard library."""


class Base(DeclarativeBase):
    """The application's declarative base."""


class Job(JobMixin, Base, queue_schema=SCHEMA):
    """The application's queue, in its own metadata."""


class SourceFile(Base):
    """A file, and the job that counts in it. Both are added in one transaction."""

    __tablename__ = "source_file"
    __table_args__ = {"schema": SCHEMA}  # noqa: RUF012 - as SQLAlchemy declares it

    path: Mapped[str] = mapped_column(primary_key=True)
    job_id: Mapped[UUID] = mapped_column(ForeignKey(Job.id))
    job: Mapped[Job] = relationship(lazy="raise")
    counts: Mapped[dict[str, Any] | None] = mapped_column(JSON)
    counted: Mapped[int] = mapped_column(default=0)
    """How often: twice would show."""


jobs = JobQueue(Job)


@jobs.handler(
    "count_file", queue="files", max_attempts=3, retry=Backoff(base=timedelta(milliseconds=200), cap=timedelta(seconds=1))
)
def count_file(path: str, session: Session) -> None:
    """Count in one file. The session commits together with the job's completion."""
    file = session.get_one(SourceFile, path)
    file.counts, file.counted = count(LIBRARY / path), file.counted + 1


def count(path: Path) -> dict[str, int]:
    """Parse a file and count in it. Raises: SyntaxError, ValueError or RecursionError if it is not valid Python."""
    source = path.read_bytes()
    kinds = Counter(map(type, ast.walk(_parse(source, path.name))))
    return {
        "lines": len(source.splitlines()),
        "functions": kinds[ast.FunctionDef] + kinds[ast.AsyncFunctionDef],
        "classes": kinds[ast.ClassDef],
        "imports": kinds[ast.Import] + kinds[ast.ImportFrom],
    }


def _parse(source: bytes, name: str) -> ast.AST:
    # CPython 3.11 (gh-106905) shares one recursion counter between threads: concurrent parsing, or formatting of a
    # traceback, can raise "AST constructor recursion depth mismatch".
    for _ in range(10):
        with suppress(SystemError):
            return ast.parse(source, name)
    return ast.parse(source, name)

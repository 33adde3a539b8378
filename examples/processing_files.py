"""An uploaded file becomes rows: in parts, each one commit, so that a crash repeats one part; then it is deleted.

Run it with `python examples/processing_files.py`. For an object store, `STORE / key` is a ranged GET of the key.
"""

import asyncio
import csv
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from sqlalchemy import Engine, create_engine, func, insert, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sa_jobqueue import AttemptContext, Continuation, Discard, JobMixin, JobQueue, Worker
from sa_jobqueue.policies.retry import immediately
from sa_jobqueue.testing.servers import open_server


class Base(DeclarativeBase):
    pass


class Job(JobMixin, Base):
    pass


class Upload(Base):
    __tablename__ = "upload"

    key: Mapped[str] = mapped_column(primary_key=True)
    size: Mapped[int]
    imported: Mapped[int] = mapped_column(default=0)


class Reading(Base):
    __tablename__ = "reading"

    id: Mapped[int] = mapped_column(primary_key=True)
    sensor: Mapped[str]
    value: Mapped[float]


jobs = JobQueue(Job)
STORE = Path(tempfile.gettempdir())
PART = 2000
"""Bytes that one job reads: as many as a few seconds take."""
LONGEST_REQUEST = 3600
"""Seconds after which an upload without a row is no longer one that is about to commit."""
crashes = [3]


@dataclass
class Part:
    """Which file, and from which byte on. A payload names the file; it does not contain it."""

    key: str
    start: int = 0


@jobs.handler("import_file", retry=immediately)
def import_file(part: Part, session: Session, ctx: AttemptContext) -> Continuation[str]:
    """Import whole lines from `start` on: rows, position and the next job are one commit."""
    upload = session.get_one(Upload, part.key)
    with (STORE / part.key).open("rb") as file:
        file.seek(part.start)
        lines = file.readlines(PART)
        end = file.tell()
    try:
        rows = [{"sensor": sensor, "value": float(value)} for sensor, value in csv.reader(line.decode() for line in lines)]
    except ValueError as error:
        raise Discard(f"{part.key}, after byte {part.start}: {error}") from error  # another attempt would read the same
    session.execute(insert(Reading), rows)
    upload.imported = end
    ctx.progress(end, upload.size, message="importing")  # shown by the dashboard, and by `wait_chain(on_progress=...)`
    if ctx.job.chain_index in crashes:
        crashes.remove(ctx.job.chain_index)
        raise MemoryError("killed in the middle")  # nothing of this part is kept
    if end < upload.size:
        return ctx.continue_with(import_file, Part(part.key, end))
    return ctx.continue_with(delete_file, part.key)


@jobs.handler("delete_file")
def delete_file(key: str) -> str:
    """Delete the file, now that its rows are committed. A file that is gone already is no error: this may run twice."""
    (STORE / key).unlink(missing_ok=True)
    return key


@jobs.cron("0 4 * * *")
@jobs.handler("delete_orphans")
def delete_orphans(session: Session) -> None:
    """Delete files whose upload was never committed: a file store takes no part in transactions."""
    committed_keys = set(session.scalars(select(Upload.key)))
    for path in STORE.glob("upload-*"):
        if path.name not in committed_keys and path.stat().st_mtime < time.time() - LONGEST_REQUEST:
            path.unlink(missing_ok=True)


def upload(engine: Engine, content: bytes, *, is_accepted: bool = True) -> str:
    """Write the file, then its row and its job in one commit, as a view does. There is never a job without a file."""
    key = f"upload-{uuid4()}"
    (STORE / key).write_bytes(content)
    with Session(engine) as session, session.begin():
        session.add_all([Upload(key=key, size=len(content)), import_file.job(Part(key))])
        if not is_accepted:
            session.rollback()
    return key


def main() -> None:
    with open_server() as server:
        engine = create_engine(server.url)
        Base.metadata.create_all(engine)
        upload(engine, "".join(f"sensor-{number % 7},{number}.5\n" for number in range(1000)).encode())
        rejected = STORE / upload(engine, b"rejected", is_accepted=False)
        os.utime(rejected, (0, 0))  # long ago
        with Session(engine) as session, session.begin():
            session.add(delete_orphans.job())
        asyncio.run(Worker(jobs, engine).run_until_idle())
        with Session(engine) as session:
            file = session.scalars(select(Upload)).one()
            print(f"imported {file.imported} of {file.size} bytes: {session.scalar(select(func.count(Reading.id)))} rows")
            parts = session.execute(select(func.count(), func.sum(Job.attempt)).where(Job.type_name == "import_file")).one()
            print(f"{parts[0]} parts in {parts[1]} attempts; files left: {len(list(STORE.glob('upload-*')))}")
        engine.dispose()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        STORE = Path(folder)
        main()

# Output:
# imported 14890 of 14890 bytes: 1000 rows
# 8 parts in 9 attempts; files left: 0

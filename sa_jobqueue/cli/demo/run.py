"""The run of the demo on a database: enqueue, kill a worker, wait for the last job, and check the result."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, Final

from sqlalchemy import Engine, NullPool, Table, create_engine, func, select, text
from sqlalchemy.orm import Session

from sa_jobqueue.cli._options import URL_VARIABLE
from sa_jobqueue.cli._supervisor import worker_command
from sa_jobqueue.cli.demo.app import LIBRARY, SCHEMA, Base, CountFile, Counts, FileCounts, Job, SourceFile, count, count_file
from sa_jobqueue.display.progress import ProgressLines
from sa_jobqueue.errors import JobQueueError
from sa_jobqueue.migrations import runner
from sa_jobqueue.operations import list_dead_letters
from sa_jobqueue.operations.pages import every_item
from sa_jobqueue.types import ENDED, AttemptOutcome, JobStatus

CHUNK: Final = 200
"""Files enqueued in one transaction."""
OWN_COMMENT: Final = "created by sa-jobqueue demo; dropped by its next run"
_LOCK_KEY: Final = 7_305_804_402_565_243_237  # any number; the same for all demos of one database
# A short heartbeat timeout, so that viewers of the demo need not wait for the default of fifteen seconds.
_OPTIONS: Final = (
    *("--concurrency", "4", "--poll-interval", "0.5s", "--heartbeat-interval", "0.5s", "--heartbeat-timeout", "3s"),
    *("--shutdown-timeout", "5s", "--log-level", "info"),
)
_PATIENCE: Final = 60.0
"""Seconds without the end of a job after which the demo gives up."""
_SHOWN: Final = 5
"""Maximum number of files that complaints name."""


class DemoError(JobQueueError):
    """The demo cannot go on: its schema is not its own, a worker exited, or no job ended for a minute."""


@contextmanager
def prepared(url: str) -> Iterator[Engine]:
    """Create and migrate the demo's schema, yield an engine, and drop the schema.

    The schema of an earlier run is dropped first. Locks: a session-level advisory lock, against concurrent demos.
    Raises: DemoError if another demo is running, or the schema was not created by the demo.
    """
    engine = create_engine(url, pool_pre_ping=True)
    guard = create_engine(url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    tables: list[Any] = [SourceFile.__table__, FileCounts.__table__]
    own: list[Table] = tables
    with guard.connect() as connection:
        if not connection.execute(text("SELECT pg_try_advisory_lock(:key)"), {"key": _LOCK_KEY}).scalar_one():
            raise DemoError("another sa-jobqueue demo is running in this database")
        found = text("SELECT obj_description(oid, 'pg_namespace') AS comment FROM pg_namespace WHERE nspname = :name")
        if (before := connection.execute(found, {"name": SCHEMA}).one_or_none()) and before.comment != OWN_COMMENT:
            raise DemoError(f"schema {SCHEMA} exists and was not created by this version of the demo; drop or rename it")
        drop = text(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE")
        connection.execute(drop)
        try:
            with engine.begin() as migrating:
                runner.upgrade(migrating, Job.__jobqueue__)
                migrating.execute(text(f"COMMENT ON SCHEMA {SCHEMA} IS '{OWN_COMMENT}'"))
                Base.metadata.create_all(migrating, tables=own)
            yield engine
        finally:
            engine.dispose()
            connection.execute(drop)


class Workers:
    """Worker processes that exit when this process ends: each holds the reading end of a pipe."""

    def __init__(self, url: str) -> None:
        # Through the environment, as other users can see arguments. Warnings about old syntax are ignored.
        self._environment = dict(os.environ) | {URL_VARIABLE: url, "PYTHONWARNINGS": "ignore"}
        self._running: dict[subprocess.Popen[bytes], tuple[int, IO[bytes]]] = {}
        self.pids: list[int] = []
        """The ids of all started processes, in order."""

    def start(self) -> int:
        """Start another worker; return its process id."""
        options = (*_OPTIONS, "--name", f"demo-{len(self.pids) + 1}")
        log = TemporaryFile()  # noqa: SIM115 - open while the worker runs
        reading, writing = os.pipe()
        command = worker_command("sa_jobqueue.cli.demo.app:jobs", *options, "--control-fd", str(reading))
        process = subprocess.Popen(  # noqa: S603 - this interpreter, arguments of ours
            command,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            pass_fds=(reading,),
        )
        os.close(reading)
        self._running[process] = writing, log
        self.pids.append(process.pid)
        return process.pid

    def kill(self, pid: int, *, holds_jobs: Callable[[], int]) -> int:
        """Kill a worker with SIGKILL if it certainly runs jobs; return how many, 0 if it was not killed.

        The process is stopped (SIGSTOP) first, so that its jobs do not change before it dies.
        """
        process = next(process for process in self._running if process.pid == pid)
        process.send_signal(signal.SIGSTOP)
        time.sleep(0.05)  # the server finishes the statements it has received
        held = holds_jobs()
        if held:
            process.kill()
            self._release(process)
        else:
            process.send_signal(signal.SIGCONT)
        return held

    def check(self) -> None:
        """Check that no worker exited. Raises: DemoError with the end of its log."""
        for process, (_, log) in self._running.items():
            if (status := process.poll()) is not None:
                log.seek(0)
                end = log.read().decode(errors="replace")[-2_000:]
                raise DemoError(f"worker {process.pid} exited with status {status}\n{end}".rstrip())

    def stop(self) -> None:
        """Stop every worker: terminate it, and kill it if it does not exit in time."""
        for process in self._running:
            process.terminate()
        for process in list(self._running):
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
            self._release(process)

    def _release(self, process: subprocess.Popen[bytes]) -> None:
        process.wait()
        pipe, log = self._running.pop(process)
        os.close(pipe)
        log.close()


def find(root: Path, limit: int | None = None) -> list[str]:
    """Return the paths of the source files below `root`, relative to it, without installed packages.

    Test data comes first, so that a run of only `limit` files has broken ones as well.
    """
    paths = (path.relative_to(root) for path in root.rglob("*.py") if path.is_file())
    own = [path for path in paths if not {"site-packages", "dist-packages"} & set(path.parts)]
    own.sort(key=lambda path: (not ("data" in path.parent.name or "bad" in path.name), path))
    return [path.as_posix() for path in own[:limit]]


def count_plainly(paths: Sequence[str]) -> dict[str, Counts | None]:
    """Count in all files in this process: the expected results. None: the file is broken."""
    found: dict[str, Counts | None] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about old syntax; the workers' environment ignores them, too
        for path in paths:
            try:
                found[path] = count(LIBRARY / path)
            except (SyntaxError, ValueError, RecursionError):
                found[path] = None
    return found


def enqueue(engine: Engine, paths: Sequence[str], lines: ProgressLines) -> None:
    """Record every file and enqueue its job, `CHUNK` files per transaction."""
    lines.begin("enqueueing", total=len(paths))
    for start in range(0, len(paths), CHUNK):
        with Session(engine) as session, session.begin():
            chunk = paths[start : start + CHUNK]
            session.add_all(SourceFile(path=path, job=count_file.job(CountFile(path))) for path in chunk)
        lines.update(start + len(chunk))


def work(engine: Engine, workers: Workers, total: int, lines: ProgressLines) -> dict[int, str]:
    """Wait until every job has ended, and kill one worker meanwhile; return its worker id, by its process id.

    Raises: DemoError if another worker exits, or no job ends for a minute.
    """
    killed: dict[int, str] = {}
    seen, changed = 0, time.monotonic()
    lines.begin("running jobs", total=total)
    while True:
        with Session(engine) as session:
            ended = session.scalar(select(func.count()).where(Job.status.in_(ENDED))) or 0
        lines.update(ended)
        if ended != seen:
            seen, changed = ended, time.monotonic()
        if ended >= total:
            return killed
        if time.monotonic() - changed > _PATIENCE:
            raise DemoError(f"no job ended for {_PATIENCE:.0f} s; {total - ended} have not ended")
        workers.check()
        if not killed and ended >= total // 10 and (victim := _kill_one(engine, workers)):
            killed, held = {victim[0]: victim[1]}, victim[2]
            lines.begin(f"killed worker {victim[0]} (SIGKILL) while it ran {held} jobs; started worker {workers.start()}")
            lines.begin("running jobs, and waiting for the killed worker's rescue", total=total)
        # A short run takes only a few hundred milliseconds.
        time.sleep(0.1 if killed else 0.005)


def _kill_one(engine: Engine, workers: Workers) -> tuple[int, str, int] | None:
    """Kill the worker that runs the most jobs; return its ids and how many they are, or None if none certainly runs one."""
    running = (
        select(Job.Worker.pid, Job.Worker.id)
        .join(Job, Job.leased_by == Job.Worker.id)
        .where(Job.status == JobStatus.RUNNING, Job.Worker.pid.in_(workers.pids))
        .group_by(Job.Worker.pid, Job.Worker.id)
        .order_by(func.count().desc())
        .limit(1)
    )
    with Session(engine) as session:
        found = session.execute(running).one_or_none()
    if found is None:
        return None

    def holds_jobs() -> int:
        with Session(engine) as session:
            held = select(func.count()).where(Job.status == JobStatus.RUNNING, Job.leased_by == found.id)
            return session.scalar(held) or 0

    held = workers.kill(found.pid, holds_jobs=holds_jobs)
    return (found.pid, found.id, held) if held else None


def report(session: Session, plain: Mapping[str, Counts | None], killed: Mapping[int, str]) -> dict[str, Any]:
    """Return the results in the database, checked against the expected counts.

    `killed`: worker ids of killed processes, by process id. `seconds`: from the first claim to the last end.
    """
    attempt = Job.Attempt
    statuses = dict(session.execute(select(Job.status, func.count()).group_by(Job.status)).all())
    outcomes = dict(session.execute(select(attempt.outcome, func.count()).group_by(attempt.outcome)).all())
    lost_by = set(session.scalars(select(attempt.worker_id).where(attempt.outcome == AttemptOutcome.LOST.value)))
    first, last = session.execute(select(func.min(Job.started_at), func.max(Job.completed_at))).one()
    ends: dict[str, list[Counts | None]] = {}
    for row in session.scalars(select(FileCounts)):
        ends.setdefault(row.path, []).append(Counts(row.lines, row.functions, row.classes, row.imports))
    errors: Counter[str] = Counter()
    for dead_letter in every_item(lambda after: list_dead_letters(session, after=after, model=Job)):
        ends.setdefault(dead_letter.input["path"], []).append(None)
        errors[(dead_letter.error or {}).get("type") or dead_letter.reason] += 1
    complaints = compare(plain, ends)
    complaints += [f"{n} jobs are still {status}" for status, n in statuses.items() if status not in ENDED]
    complaints += [] if killed else ["no worker was killed, as none was found running a job; try more --files"]
    complaints += [f"no job was rescued from the killed worker {pid}" for pid, name in killed.items() if name not in lost_by]
    seconds, completed = (last - first).total_seconds() if first and last else 0.0, statuses.get(JobStatus.COMPLETED, 0)
    return {
        "files": len(plain),
        "completed": completed,
        "retries": outcomes.get(AttemptOutcome.FAILED.value, 0) - errors.total(),
        "rescued": outcomes.get(AttemptOutcome.LOST.value, 0),
        "dead_letters": errors.total(),
        "dead_by_error": dict(errors.most_common()),
        "seconds": seconds,
        "jobs_per_second": round((completed + errors.total()) / seconds, 1) if seconds else 0.0,
        "killed_pids": list(killed),
        "complaints": complaints,
        "ok": not complaints,
    }


def compare(plain: Mapping[str, Counts | None], ends: Mapping[str, Sequence[Counts | None]]) -> list[str]:
    """Return the files that do not have exactly the expected result, or one dead letter (None) if they are broken. Pure."""
    wanted = {path: [counts] for path, counts in plain.items()}
    wrong = [path for path in sorted(wanted.keys() | ends.keys()) if wanted.get(path, []) != [*ends.get(path, [])]]
    complaints = [f"{path}: expected {wanted.get(path, [])}, found {[*ends.get(path, [])]}" for path in wrong[:_SHOWN]]
    return complaints + ([f"{len(wrong) - _SHOWN} more files"] if len(wrong) > _SHOWN else [])

"""The command: prepare a database, enqueue, kill a worker, wait for the last job, and check the result."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Final

import click
from sqlalchemy import Engine, create_engine, func, select
from sqlalchemy.engine import make_url
from sqlalchemy.orm import Session

from sa_jobqueue.cli import _options as opts
from sa_jobqueue.cli._output import echo, is_json, print_result, rewrite_line
from sa_jobqueue.cli._serving import ending
from sa_jobqueue.cli._supervisor import worker_command
from sa_jobqueue.cli.dashboard import make_app, require_extra, served
from sa_jobqueue.cli.demo.app import LIBRARY, Base, Job, SourceFile, count, count_file
from sa_jobqueue.db.urls import URL_VARIABLE, shown_url
from sa_jobqueue.display.progress import ProgressLines
from sa_jobqueue.errors import JobQueueError
from sa_jobqueue.operations import list_dead_letters
from sa_jobqueue.operations.pages import every_item
from sa_jobqueue.testing.embedded import EmbeddedServer
from sa_jobqueue.testing.servers import open_server
from sa_jobqueue.types import ENDED, AttemptOutcome, JobStatus

_IDLE_TIMEOUT_SECONDS: Final = 60.0  # seconds without the end of a job after which the demo gives up


class DemoError(JobQueueError):
    """The demo cannot go on: the workers exited, or no job ended for a minute."""


class _Interruption:
    """Ends the demo at SIGINT or SIGTERM: SystemExit runs every `finally`, so that no process is left running.

    Python discards an exception that a signal raises while a finalizer or a callback of a weak reference runs. `check`
    raises it again.
    """

    def __init__(self) -> None:
        self._status: int | None = None
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) is not signal.SIG_IGN:  # a shell ignores SIGINT for commands in the background
                signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: object) -> None:
        self._status = 128 + number
        self.check()

    def check(self) -> None:
        """Raise SystemExit if a signal has arrived."""
        if self._status is not None:
            sys.exit(self._status)


@click.command()
@click.option("--dashboard", "with_dashboard", is_flag=True, help="Serve the dashboard, also after the run, until Ctrl-C.")
@opts.number_option("--files", "Maximum number of files.  [default: all]", least=50)
@opts.json_option
def demo(*, with_dashboard: bool, files: int | None) -> None:
    """Count functions, classes and imports in Python's standard library, one job per file.

    Starts PostgreSQL and two worker processes, kills one of them, and checks the result against a count without the queue.
    Exits with status 1 if the check fails.
    """
    if with_dashboard:
        require_extra()  # before a server is started: the error would stop it again
    interruption = _Interruption()
    say = partial(echo, err=is_json())  # standard output is for the JSON document only
    with open_server("newest", settings={"shared_buffers": "64MB"}) as server, ExitStack() as stack:
        engine = create_engine(server.url)
        stack.callback(engine.dispose)
        Base.metadata.create_all(engine)
        say(f"PostgreSQL {'.'.join(map(str, server.version))} started at {shown_url(make_url(server.url))}")
        if with_dashboard:
            app, token = make_app([make_url(server.url)], Job, read_only=False)
            address = f"{stack.enter_context(served(app))}/?token={token}"
            say(f"serving the dashboard on {address}")
        is_on_one_line = sys.stdout.isatty() and not is_json()
        with ProgressLines("demo", write=rewrite_line if is_on_one_line else say, interval=1) as lines:
            report_fields = _run(engine, server.url, find(LIBRARY, files), lines, interruption)
        report_fields["pids"] += [server.pid] if isinstance(server, EmbeddedServer) else []
        if is_on_one_line:
            echo("")
        print_result(report_fields, *summary(report_fields))
        if with_dashboard:
            ended = ending(signal.SIGINT)
            say(f"the dashboard is still served on {address}; Ctrl-C ends the demo")
            ended.wait()
    sys.exit(0 if report_fields["ok"] else 1)


def summary(report_fields: Mapping[str, Any]) -> list[str]:
    """Return the report of a demo as sentences."""
    jobs, seconds, completed, dead, rescued = (
        f"{report_fields[name]:,.0f}" for name in ("files", "seconds", "completed", "dead_letters", "rescued")
    )
    errors = ", ".join(report_fields["dead_by_error"])
    killed = ", ".join(map(str, report_fields["killed_pids"]))
    return [
        f"{jobs} jobs in {seconds} s: {completed} completed, {dead} dead letters ({errors}, as without the queue).",
        *([f"Worker {killed} was killed, and its {rescued} jobs were rescued."] if killed else []),
        *(report_fields["complaints"] or ["All counts are equal to those without the queue."]),
    ]


def find(root: Path, limit: int | None = None) -> list[str]:
    """Return the paths of the source files below `root`, relative to it, without installed packages.

    Test data comes first, so that a run of only `limit` files has broken ones as well.
    """
    paths = (path.relative_to(root) for path in root.rglob("*.py") if path.is_file())
    library_paths = [path for path in paths if not {"site-packages", "dist-packages"} & set(path.parts)]
    library_paths.sort(key=lambda path: (not ("data" in path.parent.name or "bad" in path.name), path))
    return [path.as_posix() for path in library_paths[:limit]]


def _run(
    engine: Engine, url: str, paths: Sequence[str], lines: ProgressLines, interruption: _Interruption
) -> dict[str, Any]:
    """Enqueue a job for each file, run the jobs, and return the checked results."""
    lines.begin(f"enqueueing {len(paths)} files of {LIBRARY}")
    with Session(engine) as session, session.begin():
        session.add_all(SourceFile(path=path, job=count_file.job(path)) for path in paths)
    plain: dict[str, Any] = {}
    # Beside the workers. A daemon, so that an interrupted demo does not wait for its end.
    counting = threading.Thread(target=lambda: plain.update(count_plainly(paths)), name="demo counts", daemon=True)
    with _workers(url) as check:
        lines.begin("running jobs in two worker processes", total=len(paths))
        counting.start()
        killed, pids = _work(engine, check, len(paths), lines, interruption)
    lines.begin("all jobs have ended; counting without the queue to compare")
    while counting.is_alive():
        counting.join(0.1)
        interruption.check()
    with Session(engine) as session:
        return report(session, plain, killed) | {"pids": pids}


@contextmanager
def _workers(url: str) -> Iterator[Any]:
    """Run two worker processes, which end with this one; yield a function that checks that they run."""
    # Through the environment, as other users can see arguments. Warnings about old syntax are ignored.
    environment = dict(os.environ) | {URL_VARIABLE: url, "PYTHONWARNINGS": "ignore"}
    reading, writing = os.pipe()
    options = ("--processes", "2", "--concurrency", "4", "--shutdown-timeout", "5s", "--control-fd", str(reading))
    with TemporaryFile() as log:
        streams: Any = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
        command = worker_command("sa_jobqueue.cli.demo.app:jobs", *options)
        process = subprocess.Popen(command, env=environment, pass_fds=[reading], **streams)  # noqa: S603
        os.close(reading)

        def check() -> int:
            if (status := process.poll()) is None:
                return process.pid
            log.seek(0)
            end = log.read().decode(errors="replace")[-2_000:]
            raise DemoError(f"the workers exited with status {status}\n{end}".rstrip())

        try:
            yield check
        finally:
            process.terminate()  # also where its start takes long; it terminates workers that are starting
            os.close(writing)
            process.wait()


def _work(
    engine: Engine, check: Any, total: int, lines: ProgressLines, interruption: _Interruption
) -> tuple[dict[int, str], list[int]]:
    """Wait until every job has ended, and kill one worker meanwhile; return its worker id by its pid, and all pids."""
    killed: dict[int, str] = {}
    ended_before, changed = 0, time.monotonic()
    while True:
        interruption.check()
        with Session(engine) as session:
            ended = session.scalar(select(func.count()).where(Job.status.in_(ENDED))) or 0
            pids = [check(), *killed, *session.scalars(select(Job.Worker.pid))]
        lines.update(ended)
        if ended != ended_before:
            ended_before, changed = ended, time.monotonic()
        if ended >= total:
            return killed, pids
        if time.monotonic() - changed > _IDLE_TIMEOUT_SECONDS:
            raise DemoError(f"no job ended for {_IDLE_TIMEOUT_SECONDS:.0f} s; {total - ended} have not ended")
        if not killed and ended >= total // 10 and (victim := _kill_one(engine)):
            killed = {victim[0]: victim[1]}
            lines.begin(
                f"killed worker {victim[0]} (SIGKILL) while it ran {victim[2]} jobs; running the others", total=total
            )
        # A short run takes only a few hundred milliseconds.
        time.sleep(0.1 if killed else 0.005)


def _kill_one(engine: Engine) -> tuple[int, str, int] | None:
    """Kill the worker that runs the most jobs; return its ids and how many they are, or None if none certainly runs one.

    The process is stopped (SIGSTOP) first, so that its jobs do not change before it dies.
    """
    running = (
        select(Job.Worker.pid, Job.Worker.id, func.count().label("jobs"))
        .join(Job, Job.leased_by == Job.Worker.id)
        .where(Job.status == JobStatus.RUNNING)
        .group_by(Job.Worker.pid, Job.Worker.id)
        .order_by(func.count().desc())
    )
    with Session(engine) as session:
        victim = session.execute(running.limit(1)).one_or_none()
    if victim is None:
        return None
    frozen = None
    try:  # a signal that ends the demo can come with the first call's return
        os.kill(victim.pid, signal.SIGSTOP)
        time.sleep(0.05)  # the server finishes the statements it has received
        with Session(engine) as session:
            frozen = session.execute(running.where(Job.Worker.id == victim.id)).one_or_none()
    finally:
        os.kill(victim.pid, signal.SIGKILL if frozen else signal.SIGCONT)
    return (frozen.pid, frozen.id, frozen.jobs) if frozen else None


def count_plainly(paths: Sequence[str]) -> dict[str, Any]:
    """Count in all files in this process: the expected results. None: the file is broken."""
    counts: dict[str, Any] = dict.fromkeys(paths)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about old syntax; the workers' environment ignores them, too
        for path in paths:
            with suppress(SyntaxError, ValueError, RecursionError):
                counts[path] = count(LIBRARY / path)
    return counts


def report(session: Session, plain: Mapping[str, Any], killed: Mapping[int, str]) -> dict[str, Any]:
    """Return the results in the database, checked against the expected counts; `seconds` end with the last job."""
    attempt = Job.Attempt
    outcomes = dict(session.execute(select(attempt.outcome, func.count()).group_by(attempt.outcome)).all())
    lost_by = set(session.scalars(select(attempt.worker_id).where(attempt.outcome == AttemptOutcome.LOST.value)))
    first, last = session.execute(select(func.min(Job.started_at), func.max(Job.completed_at))).one()
    ends = {file.path: [file.counts] * file.counted for file in session.scalars(select(SourceFile))}
    errors: Counter[str] = Counter()
    for dead_letter in every_item(lambda after: list_dead_letters(session, after=after, model=Job)):
        ends[dead_letter.input].append(None)
        errors[(dead_letter.error or {}).get("type") or dead_letter.reason] += 1
    complaints = compare(plain, ends)
    complaints += [] if killed else ["no worker was killed, as none was found running a job; try more --files"]
    complaints += [f"no job was rescued from the killed worker {pid}" for pid, name in killed.items() if name not in lost_by]
    return {
        "check": "every file has one result or one dead letter, and all counts are equal" if not complaints else "FAILED",
        "complaints": complaints,
        "files": len(plain),
        "completed": session.scalar(select(func.count()).where(Job.status == JobStatus.COMPLETED)),
        "retries": outcomes.get(AttemptOutcome.FAILED.value, 0) - errors.total(),
        "rescued": outcomes.get(AttemptOutcome.LOST.value, 0),
        "dead_letters": errors.total(),
        "dead_by_error": dict(errors.most_common()),
        "seconds": (last - first).total_seconds() if first and last else 0.0,
        "killed_pids": list(killed),
        "ok": not complaints,
    }


def compare(plain: Mapping[str, Any], ends: Mapping[str, Sequence[Any]]) -> list[str]:
    """Return the files that do not have exactly the expected result, or one dead letter (None) if they are broken. Pure."""
    wrong = [path for path in sorted(plain.keys() | ends.keys()) if [plain.get(path, "unknown")] != [*ends.get(path, [])]]
    return [f"{path}: expected {plain.get(path, 'none')}, found {[*ends.get(path, [])]}" for path in wrong]

"""Workers on Spark's executors: finite tasks, restarted by the driver in batches.

Spark supervises processes, PostgreSQL schedules jobs: each task is an ordinary worker, which claims, sends heartbeats and
completes like any other. It ends after its idle time or maximum runtime, so that the cluster can reclaim its cores. The
driver then starts the next batch. As a last resort, Spark kills the process with SIGKILL: other workers rescue the jobs of
such a worker after its lease expires, and the fence rejects its late writes.
"""

from __future__ import annotations

import re
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from dataclasses import replace
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Self

from pyspark.sql.pandas.types import from_arrow_schema
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from sa_jobqueue.db.connections import unavailable
from sa_jobqueue.db.sessions import own_engine
from sa_jobqueue.display.progress import ProgressLines
from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.errors.bounds import check_duration, check_number
from sa_jobqueue.operations import WorkerFilter, check_schema, drain_workers
from sa_jobqueue.pipeline.spark.connections import url_of
from sa_jobqueue.pipeline.spark.errors import WorkersFailedError
from sa_jobqueue.pipeline.spark.options import Use, read_options
from sa_jobqueue.pipeline.spark.progress import WorkersEnd, WorkersReport, is_connect
from sa_jobqueue.pipeline.spark.slots import ROWS, SlotEnd, SlotSettings, load_jobs, work
from sa_jobqueue.statements import health
from sa_jobqueue.worker import WorkerOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,39}")
_DRAIN_SECONDS: Final = 0.25
"""Seconds between two drain requests, repeated for workers that start late."""
_MARGIN: Final = timedelta(seconds=10)
"""Time for a drained worker to write its last results and end, and for Spark to notice."""
_COUNTED: Final = 100_000
"""Limit of the count of a lane's due jobs, for the progress."""
_FOR_GOOD_SECONDS: Final = 60.0
"""Seconds during which a cancellation is repeated until Spark responds."""


class WorkerSet:
    """Workers on Spark's executors, started in a thread: a handle to drain, stop and wait for.

        with WorkerSet(spark, "shop.jobs:jobs", slots=8, queues=["embed"]) as workers:
            report = workers.wait()  # until a whole batch was idle

    `spark`: the session whose executors run the workers.
    `app`: `module:attribute` of the application's `JobQueue`, importable here and on every executor.
    `slots`: number of workers, 1 to 10,000, each a Spark task; those without a core wait.
    `url`: the database; default: `SA_JOBQUEUE_URL`, here and on every executor.
    `password_file`: a file with only the password, on each of them. `queues`, `concurrency` (per slot), `shutdown_timeout`,
    `worker_options`: as in `WorkerOptions`.
    `max_runtime`: how long a worker claims before it frees its core, at most 1 day.
    `idle_exit`: how long it waits for work before that, at most 1 day.
    `until_idle`: end after a batch that was idle; otherwise only on request.
    `name`: prefix of the workers' names.
    `progress`: "lines" prints it on standard error.
    Raises: InvalidOptionError, including if `spark.speculation` is on: Spark would kill one of two workers.
    """

    def __init__(
        self,
        spark: SparkSession,
        app: str,
        *,
        slots: int,
        url: str | None = None,
        password_file: str | None = None,
        queues: Any = (),
        concurrency: int = 1,
        max_runtime: timedelta = timedelta(minutes=10),
        idle_exit: timedelta = timedelta(seconds=30),
        shutdown_timeout: timedelta = timedelta(seconds=30),
        until_idle: bool = True,
        name: str = "spark",
        progress: Literal["lines"] | None = None,
        **worker_options: Any,
    ) -> None:
        if not _NAME.fullmatch(name):
            raise InvalidOptionError("name", f"must be 1 to 40 characters of A-Z, a-z, 0-9 and _.-, got {name!r}")
        check_number("slots", slots, 1, 10_000)
        check_duration("max_runtime", max_runtime, most=timedelta(days=1))
        check_duration("idle_exit", idle_exit, most=timedelta(days=1))
        if progress not in {None, "lines"}:
            raise InvalidOptionError("progress", f'must be "lines" or None, got {progress!r}')
        if str(spark.conf.get("spark.speculation", "false")).lower() == "true":
            raise InvalidOptionError("spark.speculation", "must be off: Spark kills the slower of two copies of a worker")
        self.name = f"{name}-{secrets.token_hex(3)}"
        """Prefix of its workers' names, before a dot and the slot number."""
        self._settings = SlotSettings(
            app=app,
            database=read_options({"url": url, "passwordFile": password_file}, Use.READ),
            options=WorkerOptions(
                name=self.name, queues=queues, concurrency=concurrency, shutdown_timeout=shutdown_timeout, **worker_options
            ),
            max_runtime=max_runtime,
            idle_exit=idle_exit,
        )
        jobs = load_jobs(app)
        self._model = jobs.model
        self._queues = set(self._settings.options.limits or jobs.queues)
        self._engine = own_engine(url_of(self._settings.database))
        self._slots = slots
        self._until_idle = until_idle
        self._is_shown = progress is not None
        self._tag = f"sa_jobqueue {self.name}"
        self._spark, self._is_own = _session_of_its_own(spark)
        self._report = WorkersReport(name=self.name)
        self._draining = threading.Event()
        self._ended = threading.Event()
        self._cancelled = False
        self._most_due = 0
        self._error: BaseException | None = None
        self._began: float | None = None
        self._thread = threading.Thread(target=self._run, name="sa_jobqueue rounds", daemon=True)

    @property
    def report(self) -> WorkersReport:
        """The result of the batches that have ended, and why the set ended, if it has. `elapsed` is 0 before the start."""
        if self._began is None or self._ended.is_set():
            return self._report
        return replace(self._report, elapsed=timedelta(seconds=time.monotonic() - self._began))

    @property
    def is_running(self) -> bool:
        """Whether it has started and not ended."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Start the first batch.

        Raises: DatabaseUnavailableError or SchemaError if the driver cannot use the queue; RuntimeError if it was started
        before.
        """
        if self._began is not None:
            raise RuntimeError(f"workers {self.name} were started already; make another WorkerSet")
        try:
            with Session(self._engine) as session:
                check_schema(session, model=self._model)
        except DBAPIError as error:
            raise unavailable(error, self._engine.url) from None  # its cause shows the call, including passwords
        self._began = time.monotonic()
        self._thread.start()

    def wait(self, timeout: timedelta | None = None) -> WorkersReport:
        """Wait until the workers have ended; return their result.

        Raises: WorkersFailedError when tasks failed permanently; TimeoutError after `timeout`; the workers continue.
        RuntimeError if they were not started.
        """
        self._check_started()
        if not self._ended.wait(None if timeout is None else timeout.total_seconds()):
            raise TimeoutError(f"workers {self.name} are still running after {timeout}")
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self.report

    def drain(self) -> None:
        """Ask every worker of the set to finish its running jobs; return immediately. No further batch starts.

        Raises: RuntimeError if they were not started.
        """
        self._check_started()
        if not self._draining.is_set():
            self._draining.set()
            threading.Thread(target=self._request_drain, name="sa_jobqueue drain", daemon=True).start()

    def stop(self) -> WorkersReport:
        """Drain the workers, let Spark kill those that do not end in time, and return the result.

        Raises: as `wait`.
        """
        self.drain()
        options = self._settings.options
        patience = options.heartbeat_interval + options.shutdown_timeout + options.cancel_timeout + _MARGIN
        if not self._ended.wait(patience.total_seconds()):
            self.cancel()
        return self.wait()

    def cancel(self) -> None:
        """Cancel the Spark tasks, which kills their processes after some seconds; their jobs are rescued.

        Blocks until the set has ended, at most a minute.
        Raises: RuntimeError if they were not started.
        """
        self._check_started()
        self._cancelled = True
        self.drain()
        deadline = time.monotonic() + _FOR_GOOD_SECONDS
        # Repeated, because Spark has nothing to cancel between two batches and while a query is being planned.
        while not self._ended.wait(0.2) and time.monotonic() < deadline:
            if self._is_own:
                self._spark.interruptAll()
            else:
                self._spark.interruptTag(self._tag)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.stop()
            return
        with suppress(WorkersFailedError):  # the block's own error takes precedence
            self.stop()

    def _run(self) -> None:
        try:
            with ProgressLines(f"workers {self.name}") if self._is_shown else nullcontext() as lines:
                if lines is not None:
                    lines.begin("running due jobs", measure=self._due)
                while (ended := self._end_of(self._round())) is None:
                    pass
        except BaseException as error:  # raised by `wait`, in the calling thread
            ended = WorkersEnd.CANCELLED if self._cancelled else WorkersEnd.FAILED
            if not self._cancelled:
                self._error = WorkersFailedError(self.name, self._settings.app, _reason(error))
                self._error.__cause__ = error
        self._report = replace(self.report, ended=ended)
        self._ended.set()

    def _check_started(self) -> None:
        if self._began is None:
            raise RuntimeError(f"workers {self.name} were not started: call start(), or use WorkerSet as a context manager")

    def _round(self) -> list[Any]:
        """Run one task per slot; return the last row of each."""
        settings = self._settings

        def sa_jobqueue_worker(batches: Iterator[Any]) -> Iterator[Any]:
            yield from work(settings, batches)

        self._spark.addTag(self._tag)
        try:
            slots = self._spark.range(0, self._slots, 1, self._slots)
            task_rows = slots.mapInArrow(sa_jobqueue_worker, from_arrow_schema(ROWS)).collect()
            rows = [row for row in task_rows if row.ended is not None]
        finally:
            self._spark.removeTag(self._tag)
        self._report = replace(
            self._report,
            rounds=self._report.rounds + 1,
            completed=self._report.completed + sum(row.completed for row in rows),
            failed=self._report.failed + sum(row.failed for row in rows),
            lost=self._report.lost + sum(row.lost for row in rows),
        )
        return rows

    def _end_of(self, rows: list[Any]) -> WorkersEnd | None:
        """Return why no further batch starts, or None."""
        ends = {row.ended for row in rows}
        if self._draining.is_set() or SlotEnd.DRAINED in ends:  # drained by this set, or directly
            return WorkersEnd.CANCELLED if self._cancelled else WorkersEnd.DRAINED
        return WorkersEnd.IDLE if self._until_idle and ends <= {SlotEnd.IDLE} else None

    def _request_drain(self) -> None:
        """Send drain requests until the workers have ended."""
        while not self._ended.is_set():
            # In an outage of the database, the workers survive, and so does this thread.
            with suppress(DBAPIError), Session(self._engine) as session:
                drain_workers(session, where=WorkerFilter(names=[f"{self.name}.*"]), model=self._model)
                session.commit()
            self._ended.wait(_DRAIN_SECONDS)

    def _due(self) -> tuple[int, int]:
        """Return how many jobs of the queues are no longer due, and how many were due at most."""
        with Session(self._engine) as session:
            rows = session.execute(health.depths(self._model), {"limit": _COUNTED}).all()
        due = sum(row.due for row in rows if row.queue in self._queues)
        self._most_due = max(self._most_due, due)
        return self._most_due - due, self._most_due


def run_workers(spark: SparkSession, app: str, *, slots: int, **options: Any) -> WorkersReport:
    """Run workers on Spark's executors until a whole batch was idle or they are drained; return their result.

    `spark`, `app`, `slots`, `options`: as for `WorkerSet`. An interrupt (Ctrl-C) stops the workers first.
    Raises: InvalidOptionError before anything is started; WorkersFailedError if tasks failed permanently. No job is lost
    then. An error of a handler only ends its attempt.
    """
    workers = WorkerSet(spark, app, slots=slots, **options)
    with workers:
        return workers.wait()


def _session_of_its_own(spark: Any) -> tuple[Any, bool]:
    """Return a session for the workers only, so that everything in it can be cancelled, and whether it is a separate one.

    With Connect it is the caller's session: an application shipped with `addArtifacts` belongs to it, a second session
    would have to be stopped before the client can end, and tags are found from any thread.
    """
    if is_connect(spark):
        return spark, False
    return spark.newSession(), True


def _reason(error: BaseException) -> str:
    """Return the last Python exception in Spark's report, or the report's first line if it contains none."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    raised = [line.strip() for line in lines if re.match(r"\s*[A-Za-z_][\w.]*(Error|Exception|Interrupt)\b", line)]
    return (raised[-1] if raised else lines[0])[:500]

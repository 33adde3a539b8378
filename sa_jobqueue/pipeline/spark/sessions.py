"""Spark for handlers: one session per worker process, and a separate session for each attempt.

Operations that an attempt starts in its session are cancelled when the attempt is cancelled and when its handler has ended,
by `interruptAll` of the session: it finds the operations of this session only, started in any thread. `interruptTag` does
not suffice: in PySpark 4.3 without Connect it finds only operations tagged by the thread that calls it, which here is
another one. The tag is set anyway, for users, and for Connect before 4.3, which cannot create a second session.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any, Final

from pyspark import TaskContext
from pyspark.errors import PySparkException, PySparkRuntimeError
from pyspark.sql import SparkSession

from sa_jobqueue.context import AttemptContext
from sa_jobqueue.pipeline.spark.errors import SparkOnExecutorError
from sa_jobqueue.pipeline.spark.java import java_home

_FIRST_PAUSE_SECONDS: Final = 0.1
_LONGEST_PAUSE_SECONDS: Final = 5.0
"""Maximum delay between two interruptions of a handler that continues: a query that is still being planned, or the next one
of a loop, cannot be cancelled yet."""


def _errors() -> tuple[type[Exception], ...]:
    """Return the errors raised if Spark has stopped or cannot be reached. With Connect alone, py4j is not installed."""
    found: tuple[type[Exception], ...] = (PySparkException, OSError)
    with suppress(ImportError):
        found += (import_module("py4j.protocol").Py4JError,)
    return found


_CONNECTION_ERRORS: Final = _errors()


def default_session() -> SparkSession:
    """Return the active session, or create one with the machine's Java and `spark-defaults.conf`.

    Raises: JavaNotFoundError.
    """
    if _present() is None and "SPARK_REMOTE" not in os.environ:
        os.environ.setdefault("JAVA_HOME", str(java_home()))
    return SparkSession.builder.appName("sa-jobqueue").getOrCreate()


class SparkSessions:
    """Provides Spark to the handlers of one process; a `Provider` of `SparkSession`.

    The shared session is created by `make` for the first handler that needs it, and stopped with the worker. Each attempt
    gets a separate session: settings are copied, temporary views and functions are the attempt's own, cached tables are
    shared. Thread-safe.

        jobs.dependency(SparkSession, SparkSessions(lambda: SparkSession.builder.master("local[4]").getOrCreate()))

    By default, handlers with a parameter annotated `SparkSession` receive `default_session()`.
    """

    def __init__(self, make: Callable[[], SparkSession] = default_session) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._session: SparkSession | None = None
        self._is_ours = False
        self._open_sessions = 0
        self._closing = False
        self._settings: dict[str, str] = {}

    @contextmanager
    def open(self, attempt: AttemptContext) -> Iterator[SparkSession]:
        """Open and yield a session for one `attempt`, tagged with its job's id and attempt. Blocks while Spark starts.

        Raises: SparkOnExecutorError in a Spark task, where Spark is not available; any error of `make`.
        """
        shared = self._borrow()
        try:
            session = self._beside(shared)
            job = attempt.job
            tag = f"sa_jobqueue {job.id} {job.attempt}"
            session.addTag(tag)
            _describe(session, f"{job.type_name} {job.id}, attempt {job.attempt}")
            interrupter = _Interrupter(session, tag, whole=session is not shared)
            forget = attempt.on_stop(interrupter.start)
            try:
                yield session
            finally:
                forget()
                interrupter.finish()
                with suppress(*_CONNECTION_ERRORS):
                    _describe(session, None)
                    session.removeTag(tag)
                    if session is not shared and _is_connect(session):
                        session.stop()  # on the server; without Connect, it would stop Spark for the whole process
        finally:
            self._give_back()

    def close(self) -> None:
        """Stop the shared session, if it was started here, as soon as no attempt uses it."""
        with self._lock:
            if self._open_sessions:
                self._closing = True
                return
            self._stop()

    def _borrow(self) -> SparkSession:
        if TaskContext.get() is not None:
            raise SparkOnExecutorError
        with self._lock:
            if self._session is None or _is_stopped(self._session):
                existing = _present()
                self._session = self._make()
                self._is_ours = existing is None
                conf = self._session.conf
                self._settings = {name: value for name, value in conf.getAll.items() if conf.isModifiable(name)}
            self._open_sessions += 1
            self._closing = False
            return self._session

    def _give_back(self) -> None:
        with self._lock:
            self._open_sessions -= 1
            if self._closing and not self._open_sessions:
                self._stop()

    def _stop(self) -> None:
        session, self._session, self._closing = self._session, None, False
        if session is not None and self._is_ours:
            with suppress(*_CONNECTION_ERRORS):
                session.stop()

    def _beside(self, shared: SparkSession) -> SparkSession:
        try:
            session = shared.newSession()
        except (AttributeError, NotImplementedError, PySparkException):
            return shared  # Connect before 4.3: attempts share it, and are distinguished by their tags
        for name, value in self._settings.items():
            if session.conf.get(name, None) != value:
                session.conf.set(name, value)
        return session


class _Interrupter:
    """Cancels the Spark operations of an attempt repeatedly, until its handler has ended."""

    def __init__(self, session: SparkSession, tag: str, *, whole: bool) -> None:
        self._session = session
        self._tag = tag
        self._whole = whole
        self._left = threading.Event()

    def start(self) -> None:
        """Start in a thread, because this is called on the worker's event loop and Spark may be slow to respond."""
        threading.Thread(target=self._run, name="sa_jobqueue spark interrupter", daemon=True).start()

    def finish(self) -> None:
        """Stop, and cancel operations that the handler has left running."""
        self._left.set()
        self._interrupt()

    def _run(self) -> None:
        pause = _FIRST_PAUSE_SECONDS
        while not self._left.is_set():
            self._interrupt()
            self._left.wait(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    def _interrupt(self) -> None:
        with suppress(*_CONNECTION_ERRORS):
            if self._whole:
                self._session.interruptAll()
            else:
                self._session.interruptTag(self._tag)


def _present() -> SparkSession | None:
    """Return the active session of the process, regardless of what started it, or None."""
    try:
        return SparkSession.active()
    except PySparkRuntimeError:
        return None


def _is_connect(session: Any) -> bool:
    return type(session).__module__.startswith("pyspark.sql.connect")


def _is_stopped(session: Any) -> bool:
    if _is_connect(session):
        return bool(session.is_stopped)
    return session.sparkContext._jsc is None


def _describe(session: Any, words: str | None) -> None:
    """Set the description of this thread's Spark jobs in the web UI. Connect does not support it."""
    if not _is_connect(session):
        session.sparkContext.setLocalProperty("spark.job.description", words)


spark_sessions: Final = SparkSessions()
"""The default dependency for handlers that take a `SparkSession`."""

"""Connections of Spark processes to the database, and the lookup of the queue in it.

A task takes over the connection of the task before it in the same Python worker; after ten seconds without a task it is
closed. The driver keeps none. `Options` and a `Layout` carry the settings of an executor; a URL from the environment is
read again on each executor.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cache, lru_cache
from importlib import import_module
from pathlib import Path
from threading import Timer
from types import new_class
from typing import Any, Final

import psycopg
from sqlalchemy import URL, Connection, Engine, NullPool, QueuePool, create_engine, event
from sqlalchemy.exc import DBAPIError, DisconnectionError
from sqlalchemy.orm import DeclarativeBase, Session

from sa_jobqueue.db.sessions import SETTINGS, own_options, startup_arguments
from sa_jobqueue.db.urls import URL_VARIABLE, read_url, secrets_of, shown_url
from sa_jobqueue.errors import DatabaseUnavailableError, InvalidOptionError
from sa_jobqueue.layout import Layout, Unit
from sa_jobqueue.models import Job, JobClass, JobMixin
from sa_jobqueue.operations import check_schema
from sa_jobqueue.pipeline.rights import missing_right
from sa_jobqueue.pipeline.spark.errors import ReadError, WriteError
from sa_jobqueue.pipeline.spark.options import WRITING, Options, refuse
from sa_jobqueue.registry.job_queue import JobQueue
from sa_jobqueue.registry.job_types import Registry
from sa_jobqueue.statements import schema

IDLE_TIMEOUT: Final = timedelta(minutes=1)
"""Timeout after which the server ends an idle transaction, because Spark may kill a task without notice."""
CONNECT_TIMEOUT_SECONDS: Final = 10
_NAME_AND_LOOK: Final = (
    "SELECT set_config('application_name', %s, false),"
    " (extract(epoch FROM current_setting('idle_in_transaction_session_timeout')::interval) * 1000)::float8"
)
_REFUSED_BY_POOLER: Final = "unsupported startup parameter"
"""Source: PgBouncer, `handle_client_startup`."""
_DIRECT: Final = "give Spark the server's own address"
KEEP_SECONDS: Final = 10.0
"""How long a Python worker keeps a connection without a task: a new one costs as much as staging a thousand rows."""


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue found in a database, for which statements are built."""

    layout: Layout
    app: str | None = None
    """`module:attribute` of the application's JobQueue or model, if that is used."""

    @property
    def model(self) -> JobClass:
        """Return its model class: the application's, or the one shared by all queues with this layout."""
        return load_model(self.app) if self.app else model_of(self.layout)

    @property
    def registry(self) -> Registry | None:
        """Return the job types of the application's JobQueue, if `app` names one."""
        application = load_object(self.app) if self.app else None
        return application.registry if isinstance(application, JobQueue) else None


def url_of(options: Options) -> URL:
    """Return the database URL from the option, the environment or libpq's service, with the password of `passwordFile`.

    Raises: InvalidOptionError if it is missing, or the file cannot be read. The message contains no URL or password.
    """
    url_option = options["url"]
    if url_option is not None:
        url = read_url(url_option.value)
    elif os.environ.get(URL_VARIABLE):
        url = read_url(os.environ[URL_VARIABLE], option=URL_VARIABLE)
    elif os.environ.get("PGSERVICE"):
        url = URL.create("postgresql+psycopg")
    else:
        raise InvalidOptionError("url", f"give it, or set {URL_VARIABLE} (or PGSERVICE) on the driver and on every executor")
    path = options["passwordFile"]
    if path is None:
        return url
    try:
        return url.set(password=Path(path).read_text(encoding="utf-8").strip())
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not text"
        raise InvalidOptionError("passwordFile", f"cannot be read here: {reason}") from None


@contextmanager
def connect(options: Options, *, read_only: bool = False) -> Iterator[Connection]:
    """Open a connection that commits each statement separately, unless a transaction is begun by SQL.

    Its timeouts are `statementTimeout`, and one minute for an idle transaction. The time zone is UTC.

    Raises: DatabaseUnavailableError, which names the database without passwords; InvalidOptionError as `url_of`.
    """
    url = url_of(options)
    settings: dict[str, str] = {
        "statement_timeout": str(_milliseconds(options["statementTimeout"])),
        "idle_in_transaction_session_timeout": str(_milliseconds(IDLE_TIMEOUT)),
        # JIT, which the user or the database may have enabled, costs a COPY more than it saves.
        "jit": "off",
        **({"default_transaction_read_only": "on"} if read_only else {}),
    }
    arguments = tuple(startup_arguments(own_options(url), {**SETTINGS, **settings}).items())
    reusable = _engine(url, arguments, is_kept=_task() is not None)
    try:
        connection = reusable.connect()
    except DBAPIError as error:
        reason = str(error.orig).strip().splitlines()[0] if error.orig else type(error).__name__
        # Without its cause: the driver's error contains the connection parameters, including the password.
        reason += f"; {_DIRECT}" if _REFUSED_BY_POOLER in reason else ""
        raise DatabaseUnavailableError(_clean(f"cannot use {shown_url(url)}: {reason}", url)) from None
    with reusable.returned(connection):
        yield connection


class _Kept:
    """An engine whose idle connections are closed after `KEEP_SECONDS`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._closing: Timer | None = None

    def connect(self) -> Connection:
        """Return the connection that is idle, if the server still has it, or a new one."""
        if self._closing is not None:
            self._closing.cancel()
        return self._engine.connect()

    @contextmanager
    def returned(self, connection: Connection) -> Iterator[None]:
        """Keep the connection after the block; close it if the block fails or is abandoned, in the middle of a COPY."""
        with connection:
            try:
                yield
            except BaseException:
                connection.invalidate()
                raise
        if isinstance(self._engine.pool, QueuePool):
            self._closing = Timer(KEEP_SECONDS, self._engine.dispose)
            self._closing.daemon = True
            self._closing.start()
            freeze_modules()


@cache
def freeze_modules() -> None:
    """Take all objects of this process out of the garbage collection that a Python worker of Spark runs after each task.

    These are the imported modules for the most part, whose traversal costs ten times as much CPU time as a small task. Only
    once a process, so that nothing accumulates: its memory was the same after 200 tasks as after 8.
    """
    gc.collect()
    gc.freeze()


@lru_cache(maxsize=8)
def _engine(url: URL, arguments: tuple[tuple[str, Any], ...], *, is_kept: bool) -> _Kept:
    """Return an engine once: each new one queries the version, which takes as long as connecting.

    `is_kept`: whether it keeps one connection when that is returned.
    """
    connect_arguments = {"connect_timeout": CONNECT_TIMEOUT_SECONDS, **dict(arguments)}
    pool: dict[str, Any] = {"poolclass": QueuePool, "pool_size": 1} if is_kept else {"poolclass": NullPool}
    engine = create_engine(url, isolation_level="AUTOCOMMIT", connect_args=connect_arguments, **pool)

    @event.listens_for(engine, "checkout")
    def name_connection(driver: Any, *_: Any) -> None:
        try:
            row = driver.execute(_NAME_AND_LOOK, [_application_name()]).fetchone()
        except psycopg.OperationalError as error:
            raise DisconnectionError(str(error)) from error  # the pool connects again
        if timedelta(milliseconds=row[1]) != IDLE_TIMEOUT:
            raise DatabaseUnavailableError(
                f"cannot use {shown_url(url)}: a pooler drops the options of connections; {_DIRECT}"
            )

    return _Kept(engine)


@contextmanager
def sanitised(options: Options) -> Iterator[None]:
    """Convert database errors to `ReadError` or `WriteError`, without the URL's passwords and without bound values."""
    try:
        yield
    except (DBAPIError, psycopg.Error) as error:
        url = url_of(options)
        is_write = options.use in WRITING
        kind = WriteError if is_write else ReadError
        refusal = missing_right(error, "producer" if is_write else "observer")
        message = _clean(refusal or str(getattr(error, "orig", None) or error).strip(), url)
        # Without its cause if that contains a secret, which a traceback would show.
        raise kind(message) from (None if any(secret in str(error) for secret in secrets_of(url)) else error)


def find_queue(connection: Connection, options: Options) -> Queue:
    """Return the queue that the options name; check that this library supports its tables. Changes and locks nothing.

    Raises: SchemaError, UnsupportedServerError; PipelineMissingError for a write to a queue without its tables;
    InvalidOptionError if `app` does not name a queue.
    """
    app = options["app"]
    if app is not None:
        queue = Queue(load_model(app).__jobqueue__, app)
    else:
        layout = Layout(options["schema"], options["prefix"] or "", pipeline=True)
        kind = connection.execute(schema.id_type(layout)).scalar()
        queue = Queue(replace(layout, id_type="text" if kind == "text" else "uuid"))
    with Session(connection) as session:
        unit: Unit = "pipeline" if options.use in WRITING else "queue"
        check_schema(session, unit=unit, model=queue.model)
    return queue


@cache
def model_of(layout: Layout) -> JobClass:
    """Return a model class for the tables of a layout: `Job` for its own layout, otherwise a class that is created once."""
    if layout == Job.__jobqueue__:
        return Job

    class Base(DeclarativeBase):
        """Declarative base of this queue only, so that its names cannot conflict with others."""

    mixin: Any = JobMixin[str] if layout.id_type == "text" else JobMixin
    place = {"queue_schema": layout.schema, "queue_prefix": layout.prefix, "queue_pipeline": layout.pipeline}
    model: JobClass = new_class("Job", (mixin, Base), place)
    return model


@cache
def load_model(path: str) -> JobClass:
    """Import the Job model that `module:attribute` names, directly or through its JobQueue.

    Raises: InvalidOptionError if this process has no such model; any error that the module raises.
    """
    application = load_object(path)
    model = application if isinstance(application, type) else getattr(application, "model", None)
    if not isinstance(model, type) or not issubclass(model, JobMixin):
        raise InvalidOptionError("app", f"{path!r} is neither a JobQueue nor a Job model")
    return model


def load_object(path: str) -> Any:
    """Import the object that `module:attribute` names. Raises: InvalidOptionError if this process does not have it."""
    module_name, _, attributes = path.partition(":")
    if not module_name or not attributes:
        refuse("app", f"must be module:attribute, such as shop.jobs:jobs, got {path!r}")
    try:
        loaded: Any = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # a module imported by this one is missing: the application's error, shown in full
        hint = (
            "install it on the driver and on every executor, or ship it with spark-submit --py-files, over Spark Connect "
            "with spark.addArtifacts(..., pyfile=True)"
        )
        raise InvalidOptionError("app", f"there is no module {module_name!r} here: {hint}") from None
    for attribute in attributes.split("."):
        try:
            loaded = getattr(loaded, attribute)
        except AttributeError:
            raise InvalidOptionError("app", f"{module_name!r} has no {attributes!r}") from None
    return loaded


def _task() -> Any:
    from pyspark import TaskContext

    return TaskContext.get()


def _application_name() -> str:
    task = _task()
    where = f"{task.stageId()}.{task.partitionId()}.{task.attemptNumber()}" if task else "driver"
    return f"jobqueue-spark {where}"


def _milliseconds(duration: timedelta) -> int:
    return max(1, round(duration / timedelta(milliseconds=1)))


def _clean(message: str, url: URL) -> str:
    for secret in secrets_of(url):
        message = message.replace(secret, "***")
    return message

"""Options shared by several commands: database, application, and values with units."""

from __future__ import annotations

import errno
import functools
import getpass
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import Any, Concatenate, Final, ParamSpec, TypeVar
from uuid import UUID

import click
from sqlalchemy import URL, Connection, Engine, func, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker
from sqlalchemy.orm import Session, sessionmaker

from sa_jobqueue.cli._output import set_json
from sa_jobqueue.db.connections import unavailable
from sa_jobqueue.db.sessions import own_engine
from sa_jobqueue.db.urls import URL_VARIABLE, read_url
from sa_jobqueue.display.durations import is_duration, read_duration, write_duration
from sa_jobqueue.errors import InvalidJobError, InvalidOptionError, UnknownJobTypeError
from sa_jobqueue.ids import uuid7
from sa_jobqueue.models import Job, JobClass, JobMixin
from sa_jobqueue.operations import check_schema
from sa_jobqueue.operations.audit import COMMAND, MAX_REASON, REASON
from sa_jobqueue.operations.pages import every_item
from sa_jobqueue.registry.job_queue import JobQueue
from sa_jobqueue.statements.jobs import with_ends
from sa_jobqueue.types import JobStatus

P = ParamSpec("P")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

FALLBACK_VARIABLE: Final = "DATABASE_URL"
"""Read where the variable above is not set: many platforms set it."""
APP_VARIABLE: Final = "SA_JOBQUEUE_APP"
LISTEN_VARIABLE: Final = "SA_JOBQUEUE_LISTEN_URL"
_SIZES: Final = {"K": 2**10, "M": 2**20, "G": 2**30}


def duration(value: Any) -> timedelta:
    """Parse a duration such as `30s`, `5m`, `1h30m` or `7d`. Raises: click.BadParameter."""
    if isinstance(value, timedelta):
        return value
    try:
        return read_duration(str(value))
    except ValueError as error:
        raise click.BadParameter(f"{value!r} {error}") from None


def byte_count(value: Any) -> int:
    """Parse a number of bytes, with K, M or G for powers of 1,024. Raises: click.BadParameter."""
    text = str(value).strip().upper()
    number, unit = (text[:-1], text[-1]) if text[-1:] in _SIZES else (text, "")
    try:
        return int(float(number) * _SIZES.get(unit, 1))
    except (ValueError, OverflowError):
        raise click.BadParameter(f"{value!r} is not a size such as 800M or 1.5G") from None


def instant(value: Any) -> datetime:
    """Parse a date or a time in ISO 8601; without an offset it is UTC. Raises: click.BadParameter."""
    try:
        read = value if isinstance(value, datetime) else datetime.fromisoformat(value)
    except ValueError:
        example = "2026-01-31 or 2026-01-31T12:00:00+01:00"
        raise click.BadParameter(f"{value!r} is not a time such as {example}") from None
    return read if read.tzinfo else read.replace(tzinfo=UTC)


def age_or_instant(value: Any) -> timedelta | datetime:
    """Parse an age such as `30d` or `12h`, or a time in ISO 8601. Raises: click.BadParameter."""
    if isinstance(value, timedelta | datetime):
        return value
    if is_duration(str(value)):
        return duration(value)
    try:
        return instant(value)
    except click.BadParameter:
        raise click.BadParameter(f"{value!r} is neither an age such as 30d or 12h nor a time such as 2026-01-31") from None


def urls_option(how: str | None = None) -> Callable[[F], F]:
    """Return `--url`, or with `how` that of a command that serves several databases in this way."""
    several = f"Repeat it, or separate URLs in the variable by spaces, to serve several databases {how}. " if how else ""
    return click.option(
        "--url",
        "urls" if how else "url",
        multiple=bool(how),
        envvar=[URL_VARIABLE, FALLBACK_VARIABLE],
        show_envvar=True,
        metavar="URL",
        help=f"Database URL. {several}If it has a password, set the variable instead: other users can see arguments.",
    )


url_option: Final = urls_option()


def application_option(words: str, *, required: bool = False) -> Callable[[F], F]:
    """Return `--app`. `words`: about the application's JobQueue or Job model."""
    return click.option(
        "--app", envvar=APP_VARIABLE, show_envvar=True, metavar="MODULE:ATTRIBUTE", required=required, help=words
    )


app_option: Final = application_option("The application's JobQueue or Job model.  [default: sa_jobqueue's Job]")

APPLICATION_IS_FIXED: Final = "sa_jobqueue.application_is_fixed"
"""In a context's `meta`: its commands take no MODULE:ATTRIBUTE, but use the application that APP_VARIABLE names."""


class _ApplicationArgument(click.Argument):
    """MODULE:ATTRIBUTE, which may be left out if the environment variable names it."""

    def get_usage_pieces(self, ctx: click.Context) -> list[str]:
        if APPLICATION_IS_FIXED in ctx.meta:
            return []
        return ["[MODULE:ATTRIBUTE]" if os.environ.get(APP_VARIABLE) else "MODULE:ATTRIBUTE"]

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        if APPLICATION_IS_FIXED not in ctx.meta:
            super().add_to_parser(parser, ctx)

    def make_metavar(self, *args: Any, **kwargs: Any) -> str:  # in errors
        return "MODULE:ATTRIBUTE"


def application_argument(name: str) -> Callable[[F], F]:
    """Return the decorator for the argument that names the application's JobQueue."""
    return click.argument(name, cls=_ApplicationArgument, envvar=APP_VARIABLE)


json_option: Final[Callable[[F], F]] = click.option(
    "--json", is_flag=True, expose_value=False, callback=set_json, help="Print JSON instead of text."
)
dry_run_option: Final[Callable[[F], F]] = click.option(
    "--dry-run", is_flag=True, help="Show what would change, and change nothing."
)
yes_option: Final[Callable[[F], F]] = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")


def only(flag: str, name: str, metavar: str | None, words: str, *, type: Any = None) -> Callable[[F], F]:
    """Return an option that filters by one or more values."""
    return click.option(flag, name, multiple=True, metavar=metavar, type=type, help=f"Only {words}; may be repeated.")


def one_of(values: Iterable[StrEnum]) -> click.Choice[str]:
    """Return the type of an option whose value is one of an enumeration's."""
    return click.Choice([member.value for member in values])


def period(value: Any) -> timedelta:
    """Parse a duration that is greater than 0. Raises: click.BadParameter."""
    if positive := duration(value):
        return positive
    raise click.BadParameter("must be greater than 0")


def duration_option(
    flag: str, words: str, *, default: timedelta | None = None, type: Callable[[Any], Any] = duration, **more: Any
) -> Callable[[F], F]:
    """Return an option whose value is a duration; the help ends with its default."""
    if default is not None:
        words, more["default"] = f"{words}  [default: {write_duration(default)}]", default
    return click.option(flag, type=type, metavar="DURATION", help=words, **more)


def instant_option(flag: str, name: str, words: str) -> Callable[[F], F]:
    """Return an option whose value is a time."""
    return click.option(flag, name, type=instant, metavar="TIME", help=f"{words}.")


def number_option(
    flag: str, words: str, *, least: int | None = None, most: int | None = None, default: int | None = None, **more: Any
) -> Callable[[F], F]:
    """Return an option whose value is a whole number; the help ends with its default."""
    kind = int if least is None and most is None else click.IntRange(least, most)
    return click.option(flag, type=kind, metavar="N", default=default, show_default=default is not None, help=words, **more)


def port_option(flag: str, words: str, *, default: int | None = None) -> Callable[[F], F]:
    """Return an option whose value is a port; with a default it may be 0, for a free one."""
    ports = click.IntRange(1 if default is None else 0, 65535)
    return click.option(flag, type=ports, metavar="PORT", default=default, show_default=default is not None, help=words)


def free_port(error: BaseException | None) -> str:
    """Return what to do about a port that another program has; empty for another error."""
    return "; pass --port 0 for a free one" if isinstance(error, OSError) and error.errno == errno.EADDRINUSE else ""


def address_option(flag: str, words: str) -> Callable[[F], F]:
    """Return an option whose value is an address to listen on."""
    return click.option(flag, metavar="ADDRESS", default="127.0.0.1", show_default=True, help=words)


def json_argument(name: str, *, required: bool = False) -> Callable[[F], F]:
    """Return an argument that is a JSON document, or - to read it from standard input."""
    default: dict[str, Any] = {} if required else {"default": "null"}
    return click.argument(name, metavar="JSON" if required else "[JSON]", type=json_document, **default)


def json_document(text: Any) -> Any:
    """Parse JSON; - is standard input. Raises: click.BadParameter."""
    try:
        return json.loads(sys.stdin.read() if text == "-" else text)
    except (ValueError, RecursionError) as error:
        raise click.BadParameter(f"must be JSON, such as '{{\"id\": 7}}': {error}") from None


def stacked(*options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return one decorator for several options, in the order of the help."""
    return lambda command: functools.reduce(lambda decorated, option: option(decorated), reversed(options), command)


type_option: Final = only("--type", "types", "TYPE", "of this job type")
queue_option: Final = only("--queue", "queues", "QUEUE", "in this queue")
fairness_key_option: Final = only("--fairness-key", "fairness_keys", "KEY", "with this fairness key")
status_option: Final = only("--status", "statuses", None, "with this status", type=one_of(JobStatus))
chain_option: Final = only("--chain", "chain_ids", "ID", "jobs of this chain")
heartbeat_timeout_option: Final = duration_option(
    "--heartbeat-timeout", "Heartbeat timeout of the workers.", type=period, default=timedelta(seconds=15)
)
window_option: Final = duration_option(
    "--window", "Period that rates are measured over.", type=period, default=timedelta(minutes=1)
)
explain_timeout_option: Final = duration_option(
    "--timeout",
    "Timeout of one statement; facts that take longer are left out and named.",
    type=period,
    default=timedelta(seconds=3),
)
limit_option: Final = number_option("--limit", "Maximum number of rows.", least=1, most=1000, default=50)
listen_url_option: Final = click.option(
    "--listen-url",
    envvar=LISTEN_VARIABLE,
    show_envvar=True,
    metavar="URL",
    help="URL of the server itself for LISTEN, if --url is that of a connection pooler.",
)


def user_name() -> str:
    """Return the name of the user who runs the command, to be stored with the change."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # in a container the user may have no name
        return "sa-jobqueue"


_RECORDED: Final = "sa_jobqueue.recorded"
"""Key in the meta of a click context of the entries that `Session.info` of its sessions gets for the audit."""


def _recorded(context: click.Context) -> dict[str, Any]:
    values: dict[str, Any] = context.meta.setdefault(_RECORDED, {})
    return values


def _named(context: click.Context, _: click.Parameter, by: str) -> str:
    _recorded(context)[COMMAND] = str(uuid7())
    return by


def _reasoned(context: click.Context, option: click.Parameter, reason: str | None) -> None:
    if reason is not None and not (1 <= len(reason) <= MAX_REASON and reason.isprintable()):
        raise click.BadParameter(f"must be 1 to {MAX_REASON} printable characters", context, option)
    _recorded(context)[REASON] = reason


name_option: Final[Callable[[F], F]] = click.option(
    "--by",
    default=user_name,
    metavar="NAME",
    show_default="your user name",
    help="Name to record with the change; see `audit`.",
    callback=_named,
)
by_option: Final = stacked(
    name_option,
    click.option("--why", metavar="TEXT", help="Reason to record with it.", callback=_reasoned, expose_value=False),
)


@dataclass(frozen=True, slots=True)
class Database:
    """The database and the job model that a command works on."""

    url: URL
    model: JobClass
    timeout: timedelta | None = None
    """Limit of each statement of its sessions."""

    @contextmanager
    def session(self) -> Iterator[Session]:
        """Open a session and check the schema version; uncommitted changes are rolled back.

        Raises: DatabaseUnavailableError, SchemaError and UnsupportedServerError before anything is done.
        """
        with self.connection() as connection, Session(connection, expire_on_commit=False) as session:
            try:
                if self.timeout is not None:
                    limit = f"{max(1, round(self.timeout.total_seconds() * 1000))}ms"
                    session.execute(select(func.set_config("statement_timeout", limit, False)))
                    session.commit()
                check_schema(session, model=self.model)
            except DBAPIError as error:
                raise unavailable(error, self.url) from error
            session.rollback()  # ends the transaction of the check; commands begin and end their own
            context = click.get_current_context(silent=True)
            session.info.update(context.meta.get(_RECORDED, {}) if context else {})
            yield session

    def run(self, operation: Callable[..., T], *arguments: Any, **options: Any) -> T:
        """Call an operation with a session and the model, commit, and return its result. Raises: as `session`."""
        with self.session() as session:
            result = operation(session, *arguments, model=self.model, **options)
            session.commit()
        return result

    def every(self, session: Session, operation: Callable[..., Any], *arguments: Any, **options: Any) -> list[Any]:
        """Return the items of all pages of a listing."""
        keywords = {"model": self.model, **options}
        return list(every_item(lambda after: operation(session, *arguments, after=after, **keywords)))

    def engine(self) -> Engine:
        """Return an engine of this library, after a check of the schema version. Raises: as `session`."""
        with self.session():
            return own_engine(self.url)

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        """Connect without a schema check. Raises: DatabaseUnavailableError, which quotes the URL without its password."""
        engine = own_engine(self.url)
        try:
            connection = engine.connect()
        except DBAPIError as error:
            raise unavailable(error, self.url) from error
        with connection:
            yield connection

    def job_id(self, text: str, row_class: type[Any] | None = None) -> Any:
        """Parse an id, by default of a job; look up a shortened one. Raises: click.BadParameter."""
        if self.model.__jobqueue__.id_type == "text":
            return text
        with suppress(ValueError):
            return UUID(text)
        short = _SHORT_ID.fullmatch(text.lower().replace("-", ""))
        if short is None:
            example = "its last ones after .., such as 0199c3f2..8d21e6"
            raise _bad(text, f"is not a UUID, nor one shortened to its first 8 characters or more, and {example}")
        with self.session() as session:
            ids = session.scalars(with_ends((row_class or self.model).id, short[1], short[2] or "", limit=6)).all()
        if len(ids) == 1:
            return ids[0]
        several = f"fits several ids: {', '.join(map(str, ids[:5]))}{', ...' if ids[5:] else ''}"
        raise _bad(text, several if ids else "fits no id")

    def job_ids(self, texts: Iterable[str]) -> list[Any]:
        """Parse ids of jobs, each once."""
        return [*dict.fromkeys(map(self.job_id, texts))]


def _bad(text: str, why: str) -> click.BadParameter:
    """Return a usage error that names the option or argument with this value."""
    context = click.get_current_context()
    for option in context.command.params:
        value = context.params.get(option.name or "")
        if value == text or (isinstance(value, tuple) and text in value):
            return click.BadParameter(f"{text!r} {why}", context, option)
    return click.BadParameter(f"{text!r} {why}", context)


_SHORT_ID: Final = re.compile(r"([0-9a-f]{8,32})(?:(?:…|\.\.\.?)([0-9a-f]*))?")


@contextmanager
def usage_errors() -> Iterator[None]:
    """Report a value that the library refuses as wrong usage of the option that has it."""
    try:
        yield
    except (InvalidOptionError, InvalidJobError) as error:
        name = error.option if isinstance(error, InvalidOptionError) else error.field
        # Settings that belong together are one object of the library, and options with its name before theirs.
        names = {name, f"{name}s", name.replace("retention.", "retain_"), f"retry_{name}"}
        context = click.get_current_context()
        for param in context.command.params:
            if param.name in names:
                parameter = (
                    param.opts[-1] if isinstance(param, click.Option) else param.get_error_hint(context).strip("'[.]")
                )
                raise click.UsageError(f"{parameter}: {error.reason}") from error
        raise click.UsageError(str(error)) from error
    except UnknownJobTypeError as error:
        raise click.UsageError(str(error)) from error


def with_database(command: Callable[Concatenate[Database, P], None]) -> Callable[..., None]:
    """Add `--url` and `--app` to a command, and pass it the resulting `Database`."""

    @url_option
    @app_option
    @functools.wraps(command)
    def call(url: str | None, app: str | None, *args: P.args, **kwargs: P.kwargs) -> None:
        with usage_errors():
            command(Database(parse_url(url), load_model(app)), *args, **kwargs)

    return call


reading: Final = stacked(json_option, with_database)
"""The options of every command that reads."""
changing: Final = stacked(dry_run_option, by_option, json_option, with_database)
"""The options of most commands that change something."""


@contextmanager
def application_session(path: str, url: str | None) -> Iterator[tuple[JobQueue[Any], Session]]:
    """Import a JobQueue, and open a session on the database with its tables."""
    jobs = load_jobs(path)
    with Database(parse_url(url), jobs.model).session() as session:
        yield jobs, session


def parse_url(url: str | None, option: str = "the database URL") -> URL:
    """Parse a database URL; plain `postgresql://` uses psycopg. `option`: its name in errors.

    Raises: click.UsageError, which never quotes the URL, as it may contain a password.
    """
    if not url:
        raise click.UsageError(
            f"no database URL: set {URL_VARIABLE} or {FALLBACK_VARIABLE}, or pass --url, such as postgresql://user@localhost/shop"
        )
    try:
        return read_url(url, option=option)
    except InvalidOptionError as error:
        raise click.UsageError(f"{error.option} {error.reason}") from None


def load_module(name: str) -> Any:
    """Import a module; the working directory is on the path.

    Raises: click.UsageError if it does not exist; any exception that the module raises.
    """
    if "" in name.split("."):
        raise click.UsageError(f"{name!r} is not the name of a module, such as shop.jobs")
    if (directory := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, directory)
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # a module that this one imports is missing: an error of the application, shown with its traceback
        raise click.UsageError(f"module {name!r} not found in the working directory or on sys.path") from None


def load_object(path: str) -> Any:
    """Import the object that `module:attribute` names; the working directory is on the path.

    Raises: click.UsageError if there is no such module or attribute; any exception of the module itself.
    """
    module_name, _, attributes = path.partition(":")
    if not module_name or not attributes:
        raise _bad(path, "must be MODULE:ATTRIBUTE, such as shop.jobs:jobs")
    loaded = load_module(module_name)
    for attribute in attributes.split("."):
        try:
            loaded = getattr(loaded, attribute)
        except AttributeError:
            message = f"module {module_name!r} has no attribute {attributes!r}"
            raise click.UsageError(message + _queues_of(module_name)) from None
    return loaded


def _queues_of(module_name: str) -> str:
    """Return a hint that names the queues of an imported module, or an empty text."""
    names = sorted(name for name, value in vars(sys.modules[module_name]).items() if isinstance(value, JobQueue))
    return f"; pass {' or '.join(f'{module_name}:{name}' for name in names)}" if names else ""


def load_jobs(path: str) -> JobQueue[Any]:
    """Import a `JobQueue`. Raises: click.UsageError if it is something else; as `load_object`."""
    loaded = load_object(path)
    if isinstance(loaded, type):
        raise click.UsageError(
            f"{path!r} is a class, {loaded.__name__}, not a JobQueue: name the object that JobQueue(...) returned"
        )
    if not isinstance(loaded, JobQueue):
        hint = _queues_of(path.partition(":")[0])
        raise click.UsageError(f"{path!r} is of type {type(loaded).__name__}, not a JobQueue{hint}")
    return loaded


def load_model(path: str | None) -> JobClass:
    """Return the Job model of a `JobQueue`, or the class that `path` names; `Job` of sa_jobqueue for None."""
    if path is None:
        return Job
    loaded = load_object(path)
    if isinstance(loaded, type) and issubclass(loaded, JobMixin):
        return loaded
    return load_jobs(path).model


def engine_of(source: Any, path: str | None) -> tuple[Engine | AsyncEngine, dict[str, Any]]:
    """Return the application's engine, and its session factory as an argument of `Worker`. Raises: click.UsageError."""
    match source:
        case Engine() | AsyncEngine():
            return source, {}
        case sessionmaker(kw={"bind": Engine() as engine}):
            return engine, {"session_factory": source}
        case async_sessionmaker(kw={"bind": AsyncEngine() as engine}):
            return engine, {"async_session_factory": source}
        case sessionmaker() | async_sessionmaker():
            raise click.UsageError(f"{path!r} is a session factory without an engine: bind it to one, or name the engine")
    raise click.UsageError(f"{path!r} is of type {type(source).__name__}, not an engine or a session factory")

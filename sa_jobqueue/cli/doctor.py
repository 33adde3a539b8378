"""`sa-jobqueue doctor`: check the needs of an installation before its first job, and print what to change."""

from __future__ import annotations

import asyncio
import json
import platform
import re
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from importlib import import_module, metadata
from typing import Final, Never

import click
import psycopg
from packaging.requirements import Requirement
from rich.console import Group, RenderableType
from rich.text import Text
from sqlalchemy import URL, Connection, Engine, text
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.orm import Session

from sa_jobqueue import __version__
from sa_jobqueue.cli import _options as opts
from sa_jobqueue.cli import masked
from sa_jobqueue.cli._output import print_result, shown
from sa_jobqueue.db.connections import OWN_CONNECTIONS, Connections, unavailable
from sa_jobqueue.db.sessions import GUARDS, own_engine
from sa_jobqueue.ddl.v0001 import quoted
from sa_jobqueue.errors import InvalidOptionError, JobQueueError, SchemaMissingError
from sa_jobqueue.migrations.grants import RIGHTS, rights_of, role_names
from sa_jobqueue.migrations.runner import existing
from sa_jobqueue.models import Job, JobClass
from sa_jobqueue.observe.maintenance import storage_settings
from sa_jobqueue.operations import check_schema
from sa_jobqueue.operations.restored import restored_tables
from sa_jobqueue.operations.row_security import HiddenRows, hidden_rows
from sa_jobqueue.registry.job_queue import JobQueue
from sa_jobqueue.statements._parts import table as table_of
from sa_jobqueue.types import MIN_SERVER_VERSION
from sa_jobqueue.worker import WorkerOptions

PATIENCE: Final = timedelta(seconds=10)
MAX_SKEW: Final = timedelta(seconds=1)
"""Difference between the clocks of this machine and the server from which on it is reported."""
_NEEDED: Final = OWN_CONNECTIONS + WorkerOptions().concurrency
"""The most connections that a worker with default options opens."""
DISTRIBUTION: Final = "sa-jobqueue"


class Status(StrEnum):
    """The result of a check: `error` where the queue does not work or loses jobs, `warning` where something is at risk."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


_STYLES: Final = {Status.OK: "green", Status.WARNING: "yellow", Status.ERROR: "bold red"}


@dataclass(frozen=True, slots=True)
class Check:
    """Result of one check, and what to change."""

    name: str
    status: Status
    found: str
    advice: str = ""


def _check(name: str, finding: str, advice: str = "", status: Status = Status.ERROR) -> Check:
    """Return a check: ok if there is nothing to change."""
    return Check(name, status if advice else Status.OK, finding, advice)


_FATAL: Final = {
    *("fsync", "full_page_writes", "autovacuum", "track_counts", "default_transaction_read_only"),
    *("session_replication_role", "server_encoding", "in_hot_standby"),
}
"""Settings of the server with which the queue does not work or loses jobs; the others put something at risk."""
_FOR_WORKERS: Final = "set it to 0 for the worker's role"
_READ: Final = "psycopg misreads values of the application's sessions"
_SETTINGS: Final[dict[str, tuple[str, str]]] = {
    "server_encoding": ("UTF8", "workers and migrations refuse it: create the database with ENCODING 'UTF8'"),
    "in_hot_standby": (
        "off",
        "a standby refuses writes: name all servers in the URL and add target_session_attrs=read-write",
    ),
    "fsync": ("on", "a crash of the server can lose and corrupt data: set fsync = on"),
    "full_page_writes": ("on", "a crash of the server can corrupt data: set full_page_writes = on"),
    "autovacuum": ("on", "dead rows pile up and claims become slow: set autovacuum = on"),
    "track_counts": ("on", "autovacuum needs the statistics: set track_counts = on"),
    "synchronous_commit": (
        "on|local|remote_write|remote_apply",
        "a crash of the server loses the jobs and completions of the last moments: set it to on for the roles that enqueue",
    ),
    "default_transaction_read_only": ("off", "neither producers nor workers can write: turn it off for this role"),
    "transaction_timeout": ("0", f"it ends the transactions of handlers that take longer: {_FOR_WORKERS}"),
    "idle_in_transaction_session_timeout": ("0", f"it ends handlers that compute for longer in a session: {_FOR_WORKERS}"),
    "statement_timeout": ("0", f"it ends statements of handlers and of commands that take longer: {_FOR_WORKERS}"),
    "lock_timeout": ("0", f"it ends statements of handlers that wait for a lock for longer: {_FOR_WORKERS}"),
    "idle_session_timeout": (
        "0",
        "it closes idle pooled connections: set it to 0, or create the engine with pool_pre_ping=True",
    ),
    "default_transaction_isolation": (
        "read committed",
        "transactions of handlers can fail with serialization errors, and enqueueing with a deduplication key with "
        "ConflictError: set it to 'read committed', or retry these transactions",
    ),
    "session_replication_role": ("origin", "the triggers that check the job tables do not run: set it to origin"),
    "client_encoding": ("UTF8", f"{_READ}: set client_encoding to UTF8"),
    "datestyle": ("ISO.*", f"{_READ}: set datestyle to ISO"),
    "intervalstyle": ("postgres", f"{_READ}: set intervalstyle to postgres"),
    "array_nulls": ("on", f"{_READ}: set array_nulls to on"),
    **{
        name: ("on", f"enqueueing and operators' commands read whole tables: set {name} to on")
        for name, value in GUARDS.items()
        if value == "on"
    },
}
"""The values that each setting may have in the application's sessions, as a pattern, and the effect of others."""


def application(path: str | None, role: str) -> tuple[list[Check], JobClass | None]:
    """Import the application; return the check of it, and its Job model if that could be imported.

    Without a `path` nothing is checked, and the model is that of sa_jobqueue.
    """
    if path is None:
        return [], Job
    try:
        target, model = opts.load_object(path), opts.load_model(path)
    except click.UsageError as error:
        advice = "pass the module and the name of your JobQueue as --app MODULE:ATTRIBUTE; run it where the worker runs"
        return [_check("application", error.message, advice)], None
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        reason = traceback.format_exception_only(error)[-1].strip().partition("\n")[0]
        module = path.partition(":")[0]
        why = f"module {module!r} cannot be imported: {masked(reason)} ({last.filename}:{last.lineno})"
        advice = f"correct it until python -c 'import {module}' works, with the worker's environment variables"
        return [_check("application", why, advice)], None
    if not isinstance(target, JobQueue):
        return [_check("application", f"{path} is a Job model")], model
    names = [handler.name for handler in target]
    if not names and role == "worker":
        advice = "import the modules that define them beside the JobQueue, or pass them to the worker as --import"
        return [_check("application", f"{path} has no handlers", advice, Status.WARNING)], model
    listed = f"{path}: handlers {', '.join(sorted(names)) or 'none'}; queues {', '.join(target.queues) or 'none'}"
    return [_check("application", listed)], model


def examine(
    url: URL,
    model: JobClass | None,
    *,
    role: str = "worker",
    listen_url: URL | None = None,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> Iterator[Check]:
    """Yield the checks of an installation; without a connection, the model or the tables, not the checks that need them.

    `role`: which of the grants' roles the user of the URL is to have. `now`: this machine's clock.
    """
    yield versions()
    engine = own_engine(url, connect_timeout=round(PATIENCE.total_seconds()))
    try:
        connection = engine.connect()
    except (ArgumentError, DBAPIError) as error:
        reason = _reason(unavailable(error, url) if isinstance(error, DBAPIError) else error)
        advice = "check the URL, the network and pg_hba.conf; a pooler must be in transaction or session mode"
        yield _check("connection", reason, advice)
        return
    has_tables = False
    with connection:
        # As the application connects: without this library's settings, and an encoding that SQLAlchemy may not read.
        with psycopg.connect(**engine.dialect.create_connect_args(url)[1]) as plain:
            yield from server(plain.execute(_VALUES).fetchall()[0][0])
        yield clock(connection, now)
        connection.rollback()
        if model is not None:
            tables = schema(connection, model, role)
            connection.rollback()
            yield tables
            if has_tables := tables.status is not Status.ERROR:
                yield _tried("privileges", lambda: privileges(connection, model, role))
                connection.rollback()
                yield from security(connection, model, role)
                connection.rollback()
                yield from restored(connection, model)
    yield from _connections(url, listen_url, engine, role)
    if model is not None and has_tables:
        yield _tried("storage", lambda: storage(engine, model))


_VALUES: Final = "SELECT json_object_agg(lower(name), current_setting(name)) FROM pg_settings"
"""The settings as JSON, which psycopg reads in any encoding."""


def _tried(name: str, check: Callable[[], Check]) -> Check:
    """Return the result of a check. One that the database does not let through is an error."""
    try:
        return check()
    except (DBAPIError, JobQueueError) as error:
        advice = "remove the cause that the database names, and run the command again"
        return _check(name, f"could not be checked: {_reason(error)}", advice)


def _reason(error: Exception) -> str:
    """Return the first line of an error: the others of a driver's error quote the statement."""
    return str(error.orig if isinstance(error, DBAPIError) else error).strip().partition("\n")[0]


def versions() -> Check:
    """Compare the installed packages with the requirements of this release."""
    python = f"Python {platform.python_version()}"
    try:
        needed = map(Requirement, metadata.requires(DISTRIBUTION) or [])
    except metadata.PackageNotFoundError:
        unknown = f"{python}; {DISTRIBUTION} is imported but not installed, so its requirements are unknown"
        return _check("versions", unknown, "install the package from its checkout or its wheel", Status.WARNING)
    required = [
        requirement for requirement in needed if requirement.marker is None or requirement.marker.evaluate({"extra": ""})
    ]
    versions = {requirement.name: metadata.version(requirement.name) for requirement in required}
    if wrong := [
        requirement
        for requirement in required
        if not requirement.specifier.contains(versions[requirement.name], prereleases=True)
    ]:
        mismatches = "; ".join(
            f"{requirement.name} {versions[requirement.name]} is not {requirement.specifier}" for requirement in wrong
        )
        return _check(
            "versions",
            mismatches,
            "; ".join(f"python -m pip install '{requirement.name}{requirement.specifier}'" for requirement in wrong),
        )
    return _check("versions", ", ".join([python, f"{DISTRIBUTION} {__version__}", *map(" ".join, versions.items())]))


def server(values: Mapping[str, str]) -> Iterator[Check]:
    """Yield the checks of the server's version and settings."""
    is_new = int(values["server_version_num"]) >= MIN_SERVER_VERSION
    oldest = f"upgrade to PostgreSQL {MIN_SERVER_VERSION // 10_000} or newer"
    yield _check("server", f"PostgreSQL {values['server_version']}", "" if is_new else oldest)
    settings = {name: values[name] for name in _SETTINGS if values.get(name)}
    wrong = {name: value for name, value in settings.items() if not re.fullmatch(_SETTINGS[name][0], value)}
    differences = ", ".join(f"{name} = {value}" for name, value in wrong.items())
    right = "durability, autovacuum, timeouts and formats as the queue needs them"
    advice = "; ".join(f"{name}: {_SETTINGS[name][1]}" for name in wrong)
    yield _check("settings", differences or right, advice, Status.ERROR if _FATAL & wrong.keys() else Status.WARNING)


def clock(connection: Connection, now: Callable[[], datetime]) -> Check:
    """Compare this machine's clock with the server's, which decides when jobs are due."""
    before = now()
    server: datetime = connection.execute(text("SELECT clock_timestamp()")).scalar_one()
    after = now()
    ahead = before + (after - before) / 2 - server
    skew = max(timedelta(0), abs(ahead) - (after - before) / 2)
    if skew <= MAX_SKEW:
        return _check("clock", "this machine's clock agrees with the server's")
    side = "ahead of" if ahead > timedelta(0) else "behind"
    finding = f"this machine's clock is {skew.total_seconds():,.0f} s {side} the server's"
    advice = "times that the application computes (scheduled_at, expires_at) are off by as much: use NTP on both"
    return _check("clock", finding, advice, Status.WARNING)


def schema(connection: Connection, model: JobClass, role: str) -> Check:
    """Check the version of the tables, and that their triggers are on."""
    name = model.__jobqueue__.qualified("job")
    try:
        with Session(connection) as session:
            # Without --app it is unknown whether the application needs the pipeline.
            needs_pipeline = model.__jobqueue__.pipeline and model is not Job
            version = check_schema(session, unit="pipeline" if needs_pipeline else "queue", model=model)
    except JobQueueError as error:
        connection.rollback()
        if isinstance(error, SchemaMissingError) and (elsewhere := _elsewhere(connection, model, role)):
            return elsewhere
        problem, _, advice = str(error).partition(": ")
        return _check("schema", problem, advice)
    except DBAPIError as error:
        reason = f"{name} cannot be looked at: {_reason(error)}"
        return _check("schema", reason, "grant the role its rights: sa-jobqueue grants --apply")
    return _triggers(connection, model) or _check("schema", f"{name} is of version {version}")


def restored(connection: Connection, model: JobClass) -> Iterator[Check]:
    """Yield the check of rows that were restored from another cluster, if there are any."""
    try:
        with Session(connection) as session:
            session.execute(text("SET LOCAL enable_seqscan = off"))  # as all our connections do; this is the application's
            tables = restored_tables(session, model=model)
    except DBAPIError:  # a producer may not read all of them, and has no use for the answer
        return
    if tables:
        names = " and ".join(tables)
        reason = f"there are {names} of transactions that this cluster has not reached: they were restored from another one"
        advice = "Spark's streams and upTo=watermark refuse to read them: sa-jobqueue restamp"
        yield _check("restored rows", reason, advice, Status.WARNING)


def _elsewhere(connection: Connection, model: JobClass, role: str) -> Check | None:
    """Return the check of tables that exist, but where the role or the model does not find them."""
    layout = model.__jobqueue__
    relation = connection.execute(
        text(
            "SELECT relname, nspname, has_schema_privilege(n.oid, 'USAGE') AS is_usable, current_user AS role, "
            "quote_ident(nspname) AS place, current_setting('search_path') AS path "
            "FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace "
            "WHERE (relname = :name OR :any_name) AND obj_description(c.oid, 'pg_class') LIKE 'sa_jobqueue version=%' "
            "AND relname LIKE '%job' "
            "ORDER BY relname = :name DESC, nspname = :schema DESC, nspname LIMIT 1"
        ),
        {"name": layout.name("job"), "schema": layout.schema or "public", "any_name": model is Job},
    ).one_or_none()
    if relation is None:
        return None
    where = f"table {layout.name('job')} is in schema {relation.nspname}"
    advice_of_schema = f"set queue_schema = {relation.nspname!r} on the model and pass --app"
    if relation.relname != layout.name("job"):
        reason = f"table job does not exist; {relation.nspname}.{relation.relname} is the table of another model"
        advice = "pass the JobQueue with that model as --app; if that is another queue, run the application's migrations"
    elif not relation.is_usable:
        reason = f"role {relation.role} has no USAGE on schema {relation.nspname}, which has the tables"
        advice = _grant_advice(role_names()[role], relation.role)
    elif layout.schema:
        reason, advice = f"{where}, and not in {layout.schema}, the model's queue_schema", advice_of_schema
    else:
        reason = f"{where}, and not in search_path = {relation.path}"
        advice = f'{advice_of_schema}, or ALTER ROLE "{relation.role}" SET search_path = {relation.place}'
    return _check("schema", reason, advice)


def _triggers(connection: Connection, model: JobClass) -> Check | None:
    """Return the check of triggers that someone turned off by hand."""
    disabled = connection.execute(
        text(
            "SELECT DISTINCT tgrelid::regclass::text FROM pg_trigger WHERE NOT tgisinternal AND tgenabled IN ('D', 'R') "
            "AND tgrelid IN (SELECT to_regclass(name) FROM unnest(CAST(:names AS text[])) name)"
        ),
        {"names": [model.__jobqueue__.qualified(noun) for noun in RIGHTS["observer"]]},
    ).scalars()
    if tables := sorted(disabled):
        reason = f"triggers of {', '.join(tables)} are disabled, so illegal changes of jobs are not refused"
        return _check("schema", reason, "; ".join(f"ALTER TABLE {table} ENABLE TRIGGER USER" for table in tables))
    return None


def _grant_advice(member: str, user: str) -> str:
    return f'as the owner of the tables: sa-jobqueue grants --apply, then GRANT {member} TO "{user}"'


def privileges(connection: Connection, model: JobClass, role: str) -> Check:
    """Check that the user of the connection has the rights of a role of the grants."""
    layout = model.__jobqueue__
    user, superuser = connection.execute(
        text("SELECT current_user, rolsuper FROM pg_roles WHERE rolname = current_user")
    ).one()
    required_rights = [
        {"noun": noun, "name": layout.qualified(noun), "privilege": privilege, "part": part}
        for noun, rights in rights_of(existing(connection, layout), role).items()
        for privilege, parts in re.findall(r"(\w+)(?: \(([\w, ]+)\))?", rights)
        for part in parts.split(", ")
    ]
    missing: dict[str, list[str]] = {}
    for noun, privilege in connection.execute(text(_LACKING), {"asked": json.dumps(required_rights)}):
        missing.setdefault(noun, []).append(privilege)
    member = role_names()[role]
    if missing:
        lacking = "; ".join(f"{', '.join(rights)} on {noun}" for noun, rights in missing.items())
        return _check("privileges", f"role {user} lacks {lacking}", _grant_advice(member, user))
    if superuser:
        advice = f"log in as a role that only has {member}: sa-jobqueue grants --apply"
        return _check("privileges", f"role {user} is a superuser", advice, Status.WARNING)
    return _check("privileges", f"role {user} has the rights of a {role}")


def security(connection: Connection, model: JobClass, role: str) -> Iterator[Check]:
    """Yield the check of row-level security, if it may hide rows that a role of the grants needs."""
    with Session(connection) as session:
        hidden = hidden_rows(session, commands=["SELECT"] if role == "observer" else (), model=model)
    if hidden:
        yield _security(hidden, role)


def _security(hidden: list[HiddenRows], role: str) -> Check:
    user = hidden[0].role
    summary = "; ".join(map(str, hidden))
    if role == "producer" and not any(rows.is_total for rows in hidden):
        return _check("row security", f"{summary}, as for a tenant that uses its own jobs alone")
    tables = [rows.table for rows in hidden]
    policies = "; ".join(f'CREATE POLICY all_rows ON {table} TO "{user}" USING (true) WITH CHECK (true)' for table in tables)
    return _check("row security", summary, f'ALTER ROLE "{user}" BYPASSRLS, or as the owner of the tables: {policies}')


_LACKING: Final = """\
SELECT noun, privilege
FROM json_to_recordset(CAST(:asked AS json)) AS asked (noun text, name text, privilege text, part text)
WHERE NOT CASE part WHEN '' THEN has_table_privilege(name, privilege) ELSE has_column_privilege(name, part, privilege) END"""
"""The rights that the user does not have. An error if a table or view is missing."""


def _connections(url: URL, listen_url: URL | None, engine: Engine, role: str) -> Iterator[Check]:
    """Check whether a pooler is in between, and how many connections a worker may open."""
    connections = Connections(url, worker_name="doctor", patience=PATIENCE, listen_url=listen_url)
    refused = ""
    try:
        asyncio.run(connections.find_pooler())
    except InvalidOptionError:
        refused = "--listen-url leads to a connection pooler as well"
        connections = Connections(url, worker_name="doctor", patience=PATIENCE)
        asyncio.run(connections.find_pooler())
    if listen_url is not None and not refused:
        refused = _other_server(engine, listen_url)
    yield _pooler(connections, listen_url=listen_url, refused=refused)
    if role == "worker" and connections.is_pooled:
        needed_connections = (
            f"a worker process opens up to {_NEEDED} to the pooler, {OWN_CONNECTIONS} and one for each of its concurrency"
        )
        yield _check(
            "connections", f"{needed_connections}; max_client_conn of PgBouncer must allow them for all workers together"
        )
    elif role == "worker":
        yield _tried("connections", lambda: capacity(engine))


def _other_server(engine: Engine, listen_url: URL) -> str:
    """Return why LISTEN at an address receives nothing from the database of an engine; empty if it does."""
    identity = text("SELECT current_database(), pg_postmaster_start_time()")
    listener = own_engine(listen_url, connect_timeout=round(PATIENCE.total_seconds()))
    try:
        with listener.connect() as there, engine.connect() as here:
            same = there.execute(identity).one() == here.execute(identity).one()
    except DBAPIError as error:
        return f"--listen-url: {unavailable(error, listen_url)}"
    return "" if same else "--listen-url leads to another database: its notifications are not those of the queue"


def _pooler(connections: Connections, *, listen_url: URL | None, refused: str) -> Check:
    if refused:
        return _check("pooler", refused, "pass the address of the PostgreSQL server itself, with the same database")
    if not connections.is_pooled:
        return _check("pooler", "the URL leads to the server itself; LISTEN works")
    if listen_url is not None:
        return _check("pooler", "the URL leads to a connection pooler; workers listen at --listen-url")
    finding = "the URL leads to a connection pooler; workers poll instead of listening"
    advice = "pass the server's own address as --listen-url; set prepare_threshold=None on the application's engine"
    return _check("pooler", finding, advice, Status.WARNING)


def capacity(engine: Engine) -> Check:
    """Check that the server has room for the connections of a worker."""
    with engine.connect() as connection:
        limits = connection.execute(text(_CAPACITY)).all()
    setting, most, used = min(limits, key=lambda limit: limit.most - limit.used)
    finding = f"{setting} allows {most}, of which {used} {'is' if used == 1 else 'are'} in use"
    if most - used >= _NEEDED:
        return _check("connections", finding)
    finding += f"; a worker process opens up to {_NEEDED}, {OWN_CONNECTIONS} and one for each of its concurrency"
    advice = f"raise {setting}, lower the workers' --concurrency, or connect through a pooler"
    return _check("connections", finding, advice, Status.WARNING)


_CAPACITY: Final = """\
WITH active AS (
  SELECT datname, usename FROM pg_stat_activity
  WHERE datid IS NOT NULL AND usesysid IS NOT NULL AND pid <> pg_backend_pid()
    AND application_name <> 'sa_jobqueue doctor' -- of an earlier check, which the server may still be closing
)
SELECT 'max_connections' AS setting,
  current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
    - coalesce(current_setting('reserved_connections', true)::int, 0) AS most,
  (SELECT count(*) FROM active) AS used
UNION ALL
SELECT 'the CONNECTION LIMIT of role ' || rolname, rolconnlimit, (SELECT count(*) FROM active WHERE usename = current_user)
FROM pg_roles WHERE rolname = current_user AND rolconnlimit >= 0 AND NOT rolsuper
UNION ALL
SELECT 'the CONNECTION LIMIT of database ' || d.datname, datconnlimit,
  (SELECT count(*) FROM active WHERE active.datname = d.datname)
FROM pg_database d, pg_roles WHERE d.datname = current_database() AND datconnlimit >= 0
  AND rolname = current_user AND NOT rolsuper"""
"""What limits the connections of a role: the name of the limit, its value, and how many are in use beside this one."""


def storage(engine: Engine, model: JobClass) -> Check:
    """Check the storage parameters and indexes that the migrations made."""
    layout = model.__jobqueue__
    with engine.connect() as connection:
        layout = existing(connection, layout)
    if layout.pipeline and model is Job:
        import_module("sa_jobqueue.pipeline")  # adds its tables to the class
    relations = rights_of(layout, "observer")
    nouns = {layout.name(noun): layout.qualified(noun) for noun in relations}
    every = table_of(model).metadata.tables.values()
    tables = [table for table in every if table.schema == layout.schema and table.name in nouns]
    indexes = [
        ".".join(map(quoted, filter(None, (layout.schema, str(index.name))))) for table in tables for index in table.indexes
    ]
    with engine.connect() as connection:
        missing = connection.execute(text(_MISSING), {"names": indexes}).scalars().all()
    changed = [
        parameter for parameter in storage_settings(engine, model=model) if parameter.current != parameter.recommended
    ]
    problems = [f"{parameter.table}: {parameter.name} = {parameter.current}" for parameter in changed]
    problems += [f"index {name} is missing" for name in missing]
    advice = [parameter.sql for parameter in changed]
    advice += ["create the missing indexes again: sa-jobqueue migrate sql prints their statements"] if missing else []
    right = "the tables have the storage parameters and indexes of the migrations"
    return _check("storage", ", ".join(problems) or right, "; ".join(advice), Status.WARNING)


_MISSING: Final = "SELECT name FROM unnest(CAST(:names AS text[])) name WHERE to_regclass(name) IS NULL"


@click.command()
@opts.json_option
@click.option(
    "--role",
    type=click.Choice(list(RIGHTS)),
    default="worker",
    show_default=True,
    help="What the user of the URL is for: whose privileges to check.",
)
@opts.listen_url_option
@opts.url_option
@opts.app_option
def doctor(*, url: str | None, app: str | None, role: str, listen_url: str | None) -> None:
    """Check an installation: application, versions, settings, tables, privileges, pooler and clock; print what to change.

    Changes nothing. Run it where the worker runs, with the worker's URL. Exit status: 0 without errors, 1 with errors.
    """
    address, direct = opts.parse_url(url), opts.parse_url(listen_url, "--listen-url") if listen_url else None
    checks, model = application(app, role)
    checks += examine(address, model, role=role, listen_url=direct)
    report(checks)


def report(checks: Sequence[Check]) -> Never:
    """Print checks, and exit with status 1 if one is an error, otherwise 0."""
    failed = any(check.status is Status.ERROR for check in checks)
    document = {"ok": not failed, "checks": [asdict(check) for check in checks]}
    print_result(document, Group(*(line for check in checks for line in _lines(check))))
    raise click.exceptions.Exit(int(failed))


def _lines(check: Check) -> list[RenderableType]:
    """Return a check for people: its result, then what to change, one line each."""
    first = Text(f"{check.status:8} ", style=_STYLES[check.status])
    first.append(f"{check.name}: {shown(check.found)}", style="not bold default")
    return [first, *(Text(f"         {shown(advice)}", style="dim") for advice in check.advice.split("; ") if advice)]

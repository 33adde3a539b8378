"""The checks of `sa-jobqueue doctor`: what an installation needs before its first job, each with what to change."""

from __future__ import annotations

import asyncio
import platform
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from importlib import metadata
from typing import Any, Final

from sqlalchemy import URL, Connection, Engine, NullPool, create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from sa_jobqueue.db.connections import Connections, unavailable
from sa_jobqueue.db.session_settings import GUARDS, SETTINGS, own_engine
from sa_jobqueue.errors import DatabaseUnavailableError, InvalidOptionError, JobQueueError
from sa_jobqueue.maintenance import storage_settings
from sa_jobqueue.migrations.grants import RIGHTS, role_names
from sa_jobqueue.models import JobMixin
from sa_jobqueue.operations import check_schema
from sa_jobqueue.types import MIN_SERVER_VERSION

PATIENCE: Final = timedelta(seconds=10)
MAX_SKEW: Final = timedelta(seconds=1)
"""Difference between the clocks of this machine and the server from which on it is reported."""
DISTRIBUTION: Final = "sa-jobqueue"

_READ_BY_PSYCOPG: Final = ("client_encoding", "datestyle", "intervalstyle", "array_nulls")
"""Settings of `SETTINGS` that the application's own sessions need, because the driver reads no other values."""
_PLANS: Final = tuple(name for name, value in GUARDS.items() if value == "on")
"""Planner settings on which the plans of all statements depend, including those of enqueueing and of operators."""


class Status(StrEnum):
    """The result of a check: `error` where the queue does not work or loses jobs, `warning` where something is at risk."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """Result of one check, and what to change."""

    name: str
    status: Status
    found: str
    advice: str = ""


@dataclass(frozen=True, slots=True)
class _Rule:
    setting: str
    is_bad: Callable[[str], bool]
    status: Status
    why: str


_OFF: Final = "off".__eq__
_ON: Final = "on".__eq__
_SET: Final = lambda value: value not in {"0", ""}  # noqa: E731 - one of several predicates
_SERVER_RULES: Final = (
    _Rule("fsync", _OFF, Status.ERROR, "a crash of the server can lose and corrupt data: set fsync = on"),
    _Rule("full_page_writes", _OFF, Status.ERROR, "a crash of the server can corrupt data: set full_page_writes = on"),
    _Rule("autovacuum", _OFF, Status.ERROR, "dead rows pile up and claims become slow: set autovacuum = on"),
    _Rule("track_counts", _OFF, Status.ERROR, "autovacuum needs the statistics: set track_counts = on"),
    _Rule(
        *("synchronous_commit", _OFF, Status.WARNING),
        "a crash of the server loses the jobs and completions of the last moments: set it to on for the roles that enqueue",
    ),
    _Rule(
        *("default_transaction_read_only", _ON, Status.ERROR),
        "neither producers nor workers can write: turn it off for this database and role",
    ),
    _Rule(
        *("transaction_timeout", _SET, Status.WARNING),
        "it ends the transactions of handlers that take longer: set it to 0 for the worker's role",
    ),
    _Rule(
        *("idle_in_transaction_session_timeout", _SET, Status.WARNING),
        "it ends handlers that use their session and then compute for longer: set it to 0 for the worker's role",
    ),
)


def examine(
    url: URL,
    model: type[JobMixin[Any]],
    *,
    role: str = "worker",
    listen_url: URL | None = None,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> Iterator[Check]:
    """Yield the checks of an installation. Those that need a connection, or the tables, are left out without these.

    `role`: which of the grants' roles the user of the URL is to have. `now`: this machine's clock.
    """
    yield versions()
    engine = own_engine(url, connect_timeout=round(PATIENCE.total_seconds()))
    try:
        connection = engine.connect()
    except DBAPIError as error:
        yield Check(
            name="connection",
            status=Status.ERROR,
            found=str(unavailable(error, url)),
            advice="check the URL, the network and pg_hba.conf",
        )
        return
    with connection:
        yield from _server(connection)
        yield clock(connection, now)
        connection.rollback()
        tables = schema(connection, model)
        yield tables
        if tables.status is not Status.ERROR:
            yield privileges(connection, model, role)
    yield from _sessions(url, listen_url)
    if tables.status is not Status.ERROR:
        yield storage(engine, model)


def versions() -> Check:
    """Compare the installed packages with what this release needs and was tested with."""
    found, wrong, advice = [f"Python {platform.python_version()}"], [], []
    try:
        needed = metadata.requires(DISTRIBUTION) or []
        about = metadata.metadata(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return Check(
            name="versions",
            status=Status.WARNING,
            found=f"{found[0]}; {DISTRIBUTION} is imported but not installed, so its requirements are unknown",
            advice=f"install it: python -m pip install {DISTRIBUTION}",
        )
    found.append(f"{DISTRIBUTION} {about['Version']}")
    for requirement in needed:
        match = re.match(r"([\w.-]+)(?:\[[^\]]*\])?\s*([<>=!,.\d]+)$", requirement)
        if match is None:
            continue  # of an extra
        name, bounds = match.groups()
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            version = "missing"
        found.append(f"{name} {version}")
        if not _is_within(version, bounds):
            wrong.append(f"{name} {version} is not {bounds}")
            advice.append(f"python -m pip install '{name}{bounds}'")
    tested = [re.findall(r":: 3\.(\d+)$", one) for one in about.get_all("Classifier") or []]
    newest = max(int(minor) for found_in in tested for minor in found_in)
    if not wrong and int(platform.python_version_tuple()[1]) > newest:
        return Check(
            name="versions",
            status=Status.WARNING,
            found=f"{', '.join(found)}; not tested with Python newer than 3.{newest}",
            advice=f"use Python 3.{newest}",
        )
    return Check(
        name="versions",
        status=Status.ERROR if wrong else Status.OK,
        found="; ".join(wrong) or ", ".join(found),
        advice="; ".join(advice),
    )


def _is_within(version: str, bounds: str) -> bool:
    if not version[0].isdigit():
        return False
    own = _release(version)
    lower = [_release(one) for one in re.findall(r">=([\d.]+)", bounds)]
    upper = [_release(one) for one in re.findall(r"<([\d.]+)", bounds)]
    return all(own >= one for one in lower) and all(own < one for one in upper)


def _release(version: str) -> tuple[int, ...]:
    release = re.match(r"[\d.]+", version)
    return tuple(int(part) for part in release[0].strip(".").split(".")) if release else ()


def _server(connection: Connection) -> Iterator[Check]:
    values = _settings(connection)
    yield _version(values)
    yield _primary(values)
    yield _encoding(values)
    wrong = [rule for rule in _SERVER_RULES if rule.is_bad(values.get(rule.setting, ""))]
    yield Check(
        name="settings",
        status=max((rule.status for rule in wrong), key=list(Status).index, default=Status.OK),
        found=", ".join(f"{rule.setting} = {values[rule.setting]}" for rule in wrong)
        or "durability, autovacuum and timeouts as the queue needs them",
        advice="; ".join(f"{rule.setting}: {rule.why}" for rule in wrong),
    )


def _version(values: Mapping[str, str]) -> Check:
    too_old = int(values["server_version_num"]) < MIN_SERVER_VERSION
    return Check(
        name="server",
        status=Status.ERROR if too_old else Status.OK,
        found=f"PostgreSQL {values['server_version']}",
        advice=f"upgrade to PostgreSQL {MIN_SERVER_VERSION // 10_000} or newer" if too_old else "",
    )


def _primary(values: Mapping[str, str]) -> Check:
    is_standby = values.get("in_hot_standby") == "on"
    return Check(
        name="primary",
        status=Status.ERROR if is_standby else Status.OK,
        found="this server is a standby and refuses writes" if is_standby else "this server accepts writes",
        advice="name all servers in the URL and add target_session_attrs=read-write" if is_standby else "",
    )


def _encoding(values: Mapping[str, str]) -> Check:
    name = values["server_encoding"]
    is_utf8 = name == "UTF8"
    return Check(
        name="encoding",
        status=Status.OK if is_utf8 else Status.WARNING,
        found=f"the database's encoding is {name}",
        advice="" if is_utf8 else "payloads with other characters are refused: create the database with ENCODING 'UTF8'",
    )


def clock(connection: Connection, now: Callable[[], datetime]) -> Check:
    """Compare this machine's clock with the server's, which decides what is due."""
    before = now()
    server: datetime = connection.execute(text("SELECT clock_timestamp()")).scalar_one()
    after = now()
    ahead = before + (after - before) / 2 - server
    skew = max(timedelta(0), abs(ahead) - (after - before) / 2)
    side = "ahead of" if ahead > timedelta(0) else "behind"
    if skew <= MAX_SKEW:
        return Check(name="clock", status=Status.OK, found="this machine's clock agrees with the server's")
    return Check(
        name="clock",
        status=Status.WARNING,
        found=f"this machine's clock is {skew.total_seconds():,.0f} s {side} the server's",
        advice="times that the application computes (scheduled_at, expires_at) are off by as much: use NTP on both",
    )


def schema(connection: Connection, model: type[JobMixin[Any]]) -> Check:
    """Check the version of the tables."""
    name = model.__jobqueue__.qualified("job")
    try:
        with Session(connection) as session:
            version = check_schema(session, model=model)
    except JobQueueError as error:
        found, _, advice = str(error).partition(": ")
        return Check(name="schema", status=Status.ERROR, found=found, advice=advice)
    except DBAPIError as error:
        reason = str(error.orig).strip().partition("\n")[0]
        return Check(
            name="schema",
            status=Status.ERROR,
            found=f"{name} cannot be looked at: {reason}",
            advice="grant the role its rights: sa-jobqueue grants --apply",
        )
    return Check(name="schema", status=Status.OK, found=f"{name} is of version {version}")


def privileges(connection: Connection, model: type[JobMixin[Any]], role: str) -> Check:
    """Check that the user of the connection has what a role of the grants has."""
    layout = model.__jobqueue__
    user, superuser = connection.execute(
        text("SELECT current_user, rolsuper FROM pg_roles WHERE rolname = current_user")
    ).one()
    asked = [
        (noun, *re.fullmatch(r"(\w+)(?: \((\w+)\))?", right).groups())  # type: ignore[union-attr]
        for noun, rights in RIGHTS[role].items()
        for right in rights.split(", ")
    ]
    missing: dict[str, list[str]] = {}
    for noun, right, column in asked:
        values = {"name": layout.qualified(noun), "right": right, "column": column}
        function = "has_column_privilege(:name, :column, :right)" if column else "has_table_privilege(:name, :right)"
        if not connection.execute(text(f"SELECT {function}"), values).scalar_one():
            missing.setdefault(noun, []).append(right)
    member = role_names()[role]
    if missing:
        return Check(
            name="privileges",
            status=Status.ERROR,
            found=f"role {user} lacks " + "; ".join(f"{', '.join(rights)} on {noun}" for noun, rights in missing.items()),
            advice=f'as the owner of the tables: sa-jobqueue grants --apply, then GRANT {member} TO "{user}"',
        )
    if superuser:
        return Check(
            name="privileges",
            status=Status.WARNING,
            found=f"role {user} is a superuser",
            advice=f"log in as a role that only has {member}: sa-jobqueue grants --apply",
        )
    return Check(name="privileges", status=Status.OK, found=f"role {user} has the rights of a {role}")


def _sessions(url: URL, listen_url: URL | None) -> Iterator[Check]:
    """Check the sessions that the application and the worker get, and whether a pooler is in between."""
    connections = Connections(url, worker_name="doctor", patience=PATIENCE, listen_url=listen_url)
    refused = ""
    try:
        asyncio.run(connections.find_pooler())
    except InvalidOptionError:
        refused = "--listen-url leads to a connection pooler as well"
        connections = Connections(url, worker_name="doctor", patience=PATIENCE)
        asyncio.run(connections.find_pooler())
    yield _pooler(connections, listen_url=listen_url, refused=refused)
    yield _application(url)
    yield _worker(connections)


def _pooler(connections: Connections, *, listen_url: URL | None, refused: str) -> Check:
    if refused:
        return Check(
            name="pooler", status=Status.ERROR, found=refused, advice="pass the address of the PostgreSQL server itself"
        )
    if not connections.is_pooled:
        return Check(name="pooler", status=Status.OK, found="the URL leads to the server itself; LISTEN works")
    if listen_url is None:
        return Check(
            name="pooler",
            status=Status.WARNING,
            found="the URL leads to a connection pooler that shares server sessions; workers poll instead of listening",
            advice="pass the server's own address as --listen-url; set prepare_threshold=None on the application's engine",
        )
    return Check(
        name="pooler", status=Status.OK, found="the URL leads to a connection pooler; workers listen at --listen-url"
    )


def _application(url: URL) -> Check:
    """Check a session as the application opens it: without this library's settings."""
    engine = create_engine(url, poolclass=NullPool)
    try:
        with engine.connect() as connection:
            values = _settings(connection)
    except DBAPIError as error:
        raise unavailable(error, url) from error
    finally:
        engine.dispose()
    wanted = {name: SETTINGS[name] for name in _READ_BY_PSYCOPG} | dict.fromkeys(_PLANS, "on")
    wrong = {name: values[name] for name, value in wanted.items() if not values[name].upper().startswith(value.upper())}
    return Check(
        name="sessions",
        status=Status.WARNING if wrong else Status.OK,
        found=", ".join(f"{name} = {value}" for name, value in wrong.items()) or "the application's sessions can be read",
        advice="; ".join(f"set {name} to {wanted[name]} for the application's role" for name in wrong),
    )


def _worker(connections: Connections) -> Check:
    """Check a session as a worker opens it: the planner's settings must hold in its statements."""
    engine = connections.thread_engine()
    try:
        with engine.connect() as connection:
            values = _settings(connection)
    except DBAPIError as error:
        raise DatabaseUnavailableError(str(error.orig)) from error
    finally:
        engine.dispose()
    wrong = {name: values[name] for name, value in GUARDS.items() if values[name] != value}
    return Check(
        name="planner",
        status=Status.ERROR if wrong else Status.OK,
        found=", ".join(f"{name} = {value} in a worker's session" for name, value in wrong.items())
        or "a worker's sessions have its planner settings",
        advice="find what changes settings after the login (an event trigger, a pooler's connect_query), and remove it"
        if wrong
        else "",
    )


def storage(engine: Engine, model: type[JobMixin[Any]]) -> Check:
    """Check the storage parameters that the migrations set."""
    changed = [one for one in storage_settings(engine, model=model) if one.current != one.recommended]
    return Check(
        name="storage",
        status=Status.WARNING if changed else Status.OK,
        found=", ".join(f"{one.table}: {one.name} = {one.current}" for one in changed)
        or "the tables have the storage parameters of the migrations",
        advice="; ".join(one.sql for one in changed),
    )


def _settings(connection: Connection) -> dict[str, str]:
    rows = connection.execute(text("SELECT name, current_setting(name) FROM pg_settings")).all()
    return {name.lower(): value for name, value in rows}

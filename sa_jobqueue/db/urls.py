"""Database URLs: parsing them, and showing them without their passwords."""

from __future__ import annotations

import math
from typing import Final

from psycopg import pq
from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from sa_jobqueue.errors import InvalidOptionError

URL_VARIABLE: Final = "SA_JOBQUEUE_URL"
"""Environment variable with the default URL of the database."""

_EXAMPLE: Final = "postgresql://user@host:port/database"
_SSL_MODES: Final = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
_ASYNCPG_ONLY: Final = (
    "async_fallback",
    "command_timeout",
    "max_cacheable_statement_size",
    "max_cached_statement_lifetime",
    "prepared_statement_cache_size",
    "prepared_statement_name_func",
    "statement_cache_size",
)
"""URL parameters that change how asyncpg and SQLAlchemy's dialect run statements, but not which database they connect to."""


def read_url(text: str, *, option: str = "url") -> URL:
    """Read a database URL; plain `postgresql://` means psycopg. Nothing is connected to.

    Raises: InvalidOptionError naming `option`, which never quotes the URL: there may be a password in it.
    """
    try:
        parsed = make_url(text)
    except (ArgumentError, ValueError):
        raise InvalidOptionError(option, f"must have the form {_EXAMPLE}") from None
    if parsed.get_backend_name() not in {"postgresql", "postgres"}:
        raise InvalidOptionError(option, f"must be a PostgreSQL URL: {_EXAMPLE}")
    if "@" in (parsed.host or ""):
        # What follows the first @ of a password would be taken for the host, and be shown by every error.
        raise InvalidOptionError(option, "has two @: write those of the password as %40")
    password = parsed.query.get("password")
    if isinstance(password, str):
        parsed = parsed.set(password=password).difference_update_query(["password"])
    return for_psycopg(parsed, option=option)


def for_psycopg(url: URL, *, option: str = "url") -> URL:
    """Return the URL of the same database for psycopg, the driver of the library's own connections.

    Of asyncpg's options, `ssl`, `direct_tls`, `timeout` and `database` become libpq's `sslmode`, `sslnegotiation`,
    `connect_timeout` and `dbname`; those that only concern how asyncpg runs statements are left out. psycopg2 has
    libpq's options already, and `database`.
    Raises: InvalidOptionError naming `option`, for an option that libpq does not know or a value that cannot be
    translated. It never quotes the URL.
    """
    query = dict(url.query)
    if url.drivername.endswith("+asyncpg"):
        for name in _ASYNCPG_ONLY:
            query.pop(name, None)
        if "ssl" in query:
            query["sslmode"] = _ssl_mode(str(query.pop("ssl")), option=option)
        if query.pop("direct_tls", None):  # asyncpg takes any text for true
            query["sslnegotiation"] = "direct"
        if "timeout" in query:
            query["connect_timeout"] = _whole_seconds(str(query.pop("timeout")), option=option)
    if "database" in query:
        query["dbname"] = query.pop("database")
    libpq_options = {conninfo_option.keyword.decode() for conninfo_option in pq.Conninfo.get_defaults()}
    for name in query:
        if name not in libpq_options:
            raise InvalidOptionError(
                option,
                f"has the option {name!r}, which the library's own connections cannot use: they are made by psycopg, which "
                "takes libpq's options; set it in connect_args of your engine instead of the URL",
            )
    return url.set(drivername="postgresql+psycopg", query=query)


def _ssl_mode(asyncpg_mode: str, *, option: str) -> str:
    mode = asyncpg_mode.replace("_", "-")
    if mode not in _SSL_MODES:
        raise InvalidOptionError(option, f"has ssl={asyncpg_mode!r}; it must be one of {', '.join(_SSL_MODES)}")
    return mode


def _whole_seconds(asyncpg_timeout: str, *, option: str) -> str:
    try:
        return str(max(1, math.ceil(float(asyncpg_timeout))))
    except (ValueError, OverflowError):
        raise InvalidOptionError(option, f"has timeout={asyncpg_timeout!r}; it must be a number of seconds") from None


def shown_url(url: URL) -> str:
    """Return a URL for people, without its passwords: libpq takes them among the parameters as well."""
    return url.difference_update_query(["password", "sslpassword"]).render_as_string(hide_password=True)


def secrets_of(url: URL) -> tuple[str, ...]:
    """Return what of a URL must never be shown, the longest first."""
    passwords = [url.password, *(url.query.get(name) for name in ("password", "sslpassword"))]
    return tuple(sorted({str(password) for password in passwords if password}, key=len, reverse=True))

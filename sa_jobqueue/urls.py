"""How a database is named: one URL, read and shown without ever showing its passwords."""

from __future__ import annotations

from typing import Final

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from sa_jobqueue.errors import InvalidOptionError

URL_VARIABLE: Final = "SA_JOBQUEUE_URL"
"""The environment variable that names the database where nothing else does."""

_EXAMPLE: Final = "postgresql://user:password@host:port/database"


def read_url(text: str, *, option: str = "url") -> URL:
    """Read a database URL; plain `postgresql://` means psycopg. Nothing is connected to.

    Raises: InvalidOptionError naming `option`, which never quotes the URL: there may be a password in it.
    """
    try:
        parsed = make_url(text)
    except (ArgumentError, ValueError):
        raise InvalidOptionError(option, f"the database URL is not one: {_EXAMPLE}") from None
    if parsed.get_backend_name() not in {"postgresql", "postgres"}:
        raise InvalidOptionError(option, f"the database URL must be of PostgreSQL: {_EXAMPLE}")
    if "@" in (parsed.host or ""):
        # What follows the first @ of a password would be taken for the host, and be shown by every error.
        raise InvalidOptionError(option, "the database URL has two @: write those of the password as %40")
    password = parsed.query.get("password")
    if isinstance(password, str):
        parsed = parsed.set(password=password).difference_update_query(["password"])
    return parsed.set(drivername="postgresql+psycopg")


def shown_url(url: URL) -> str:
    """Return a URL for people, without its passwords: libpq takes them among the parameters as well."""
    return url.difference_update_query(["password", "sslpassword"]).render_as_string(hide_password=True)


def secrets_of(url: URL) -> tuple[str, ...]:
    """Return what of a URL must never be shown, the longest first."""
    found = [url.password, *(url.query.get(name) for name in ("password", "sslpassword"))]
    return tuple(sorted({str(one) for one in found if one}, key=len, reverse=True))

"""A database URL as psycopg takes it, whatever driver it was written for."""

from __future__ import annotations

import pytest
from sqlalchemy import make_url

from sa_jobqueue.db.urls import for_psycopg, read_url
from sa_jobqueue.errors import InvalidOptionError


@pytest.mark.parametrize(
    ("driver", "query", "expected"),
    [
        ("asyncpg", "ssl=prefer", {"sslmode": "prefer"}),
        ("asyncpg", "ssl=verify_full&sslrootcert=ca.pem", {"sslmode": "verify-full", "sslrootcert": "ca.pem"}),
        ("asyncpg", "timeout=2.5&database=shop", {"connect_timeout": "3", "dbname": "shop"}),
        ("asyncpg", "ssl=require&direct_tls=true", {"sslmode": "require", "sslnegotiation": "direct"}),
        ("asyncpg", "prepared_statement_cache_size=0&statement_cache_size=0&command_timeout=60", {}),
        ("asyncpg", "target_session_attrs=primary&passfile=p", {"target_session_attrs": "primary", "passfile": "p"}),
        ("psycopg2", "sslmode=require&database=shop", {"sslmode": "require", "dbname": "shop"}),
        ("psycopg", "options=-c work_mem=1MB&host=/tmp", {"options": "-c work_mem=1MB", "host": "/tmp"}),
    ],
)
def test_driver_url_options_are_translated_to_libpq_options(driver: str, query: str, expected: dict[str, str]) -> None:
    url = for_psycopg(make_url(f"postgresql+{driver}://me:secret@localhost/test?{query}"))
    assert url.drivername == "postgresql+psycopg"
    assert dict(url.query) == expected
    assert for_psycopg(url) == url


@pytest.mark.parametrize(
    ("url", "option"),
    [
        ("postgresql+asyncpg://me:secret@localhost/test?ssl=maybe", "ssl='maybe'; it must be one of disable, allow"),
        ("postgresql+asyncpg://me:secret@localhost/test?timeout=soon", "timeout='soon'; it must be a number of seconds"),
        ("postgresql+asyncpg://me:secret@localhost/test?server_settings=x", "has the option 'server_settings'"),
        ("postgresql+psycopg://me:secret@localhost/test?ssl=require", "has the option 'ssl'"),
    ],
)
def test_an_option_that_cannot_be_translated_is_refused_by_name(url: str, option: str) -> None:
    with pytest.raises(InvalidOptionError, match="listen_url: has") as caught:
        read_url(url, option="listen_url")
    assert option in str(caught.value)
    assert "secret" not in str(caught.value)

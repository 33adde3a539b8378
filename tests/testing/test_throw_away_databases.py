"""Each test has a database of its own, a copy of one template, on any of the servers at hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Column, Integer, MetaData, NullPool, Table, create_engine, text
from sqlalchemy.exc import OperationalError

from sa_jobqueue.testing.databases import create_database, create_template, drop_database, throw_away_database
from sa_jobqueue.testing.servers import TEST_SETTINGS, ExternalServer, PostgresServer, open_server
from tests.fixtures.database import extreme

METADATA = MetaData(schema="work")
NUMBERS = Table("numbers", METADATA, Column("number", Integer, primary_key=True))


@pytest.fixture(scope="session")
def jobqueue_metadata() -> MetaData:
    return METADATA


@pytest.mark.parametrize("round_number", [1, 2])
def test_each_test_finds_the_tables_empty(jobqueue_database_url: str, round_number: int) -> None:
    with create_engine(jobqueue_database_url, poolclass=NullPool).begin() as connection:
        assert connection.scalars(NUMBERS.select()).all() == []
        connection.execute(NUMBERS.insert().values(number=round_number))


@pytest.mark.slow
def test_a_test_may_stop_its_own_server_with_its_databases(make_database: Callable[[PostgresServer], str]) -> None:
    with open_server("newest", settings=TEST_SETTINGS) as server:
        assert make_database(server).startswith("postgresql+psycopg://")


def test_a_throw_away_database_is_dropped_despite_open_sessions(newest_server: PostgresServer) -> None:
    with throw_away_database(newest_server.url) as url:
        engine = create_engine(url)
        with engine.connect() as connection:
            connection.execute(text("SELECT 1"))
        # the pool still holds its session
    engine.dispose()
    with pytest.raises(OperationalError, match="does not exist"):
        create_engine(url, poolclass=NullPool).connect()


def test_a_template_that_cannot_be_prepared_is_dropped(newest_server: PostgresServer) -> None:
    begun: list[str] = []

    def fail(url: str) -> None:
        begun.append(url)
        raise LookupError("no schema")

    with pytest.raises(LookupError):
        create_template(newest_server.url, fail)
    with pytest.raises(OperationalError, match="does not exist"):
        create_engine(begun[0], poolclass=NullPool).connect()


def test_a_given_url_is_used_unchanged_and_its_server_is_never_stopped(newest_server: PostgresServer) -> None:
    database_url = create_database(newest_server.url)
    with open_server(database_url.replace("postgresql+psycopg", "postgres")) as server:
        assert isinstance(server, ExternalServer)
        assert server.url == database_url
        assert server.version == newest_server.version
    drop_database(database_url)


class OneServer:
    """A request for fixtures where one release is at hand."""

    def getfixturevalue(self, _name: str) -> OneServer:
        return self


def test_with_one_server_version_the_default_run_uses_it() -> None:
    request: Any = OneServer()
    with pytest.raises(pytest.skip.Exception):
        extreme(request, "oldest")
    assert extreme(request, "newest") is request

"""Pytest fixtures that provide real PostgreSQL: one server per session, one temporary database per test.

Load it with `-p sa_jobqueue.testing.plugin` or `pytest_plugins`. Nothing starts before a fixture is requested. A suite
with its own tables overrides `jobqueue_metadata`; a test that crashes servers opens a separate one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from sqlalchemy import MetaData

    from sa_jobqueue.testing.servers import PostgresServer

MakeDatabase = Callable[["PostgresServer"], str]
Templates = dict[tuple[str, "MetaData"], str]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--jobqueue-server`."""
    parser.getgroup("sa_jobqueue").addoption(
        "--jobqueue-server",
        default="auto",
        metavar="auto|newest|oldest|docker|URL",
        help="PostgreSQL server for the tests. auto: SA_JOBQUEUE_URL, else Docker, else the newest programs.",
    )


@pytest.fixture(scope="session")
def jobqueue_metadata() -> MetaData:
    """Return the tables of every test database: those of the ready-made models unless overridden."""
    from sa_jobqueue import models

    return models.Base.metadata


@pytest.fixture(scope="session")
def jobqueue_server(request: pytest.FixtureRequest) -> Iterator[PostgresServer]:
    """Return the running server of this session, chosen by `--jobqueue-server`."""
    from sa_jobqueue.testing.servers import TEST_SETTINGS, open_server

    with open_server(str(request.config.getoption("--jobqueue-server")), settings=TEST_SETTINGS) as server:
        yield server


@pytest.fixture(scope="session")
def _jobqueue_templates() -> Iterator[Templates]:
    from sqlalchemy.exc import OperationalError

    from sa_jobqueue.testing.databases import drop_database

    templates: Templates = {}
    yield templates
    for template in templates.values():
        with suppress(OperationalError):  # its server is gone, and its databases with it
            drop_database(template)


@pytest.fixture
def make_database(request: pytest.FixtureRequest, _jobqueue_templates: Templates) -> Iterator[MakeDatabase]:
    """Return a function that clones a database with the tables of `jobqueue_metadata` on a server and returns its URL.

    Each is dropped after the test, even if sessions are still connected to it.
    """
    from sqlalchemy.exc import OperationalError

    from sa_jobqueue.testing.databases import create_database, create_schema, create_template, database_name, drop_database

    urls: list[str] = []

    def make(server: PostgresServer) -> str:
        # A module may override the tables: each kind has a template of its own.
        metadata: MetaData = request.getfixturevalue("jobqueue_metadata")
        template = _jobqueue_templates.get((server.url, metadata))
        if template is None:
            template = create_template(server.url, lambda url: create_schema(url, metadata))
            _jobqueue_templates[server.url, metadata] = template
        urls.append(create_database(server.url, database_name(template)))
        return urls[-1]

    yield make
    for url in urls:
        with suppress(OperationalError):  # as above
            drop_database(url)


@pytest.fixture
def jobqueue_database_url(jobqueue_server: PostgresServer, make_database: MakeDatabase) -> str:
    """Return the URL of a separate database for this test, with the tables of `jobqueue_metadata` and no rows."""
    return make_database(jobqueue_server)

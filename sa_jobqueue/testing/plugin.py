"""Pytest fixtures that provide real PostgreSQL: one server per session, one temporary database per test.

Load it with `-p sa_jobqueue.testing.plugin` or `pytest_plugins`. Nothing starts before a fixture is requested. A suite
with its own tables overrides `jobqueue_metadata`; a test that crashes servers opens a separate one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from sqlalchemy import MetaData

    from sa_jobqueue.testing.databases import DatabaseTemplate
    from sa_jobqueue.testing.servers import PostgresServer

OpenServer = Callable[[str], "PostgresServer"]
MakeDatabase = Callable[["PostgresServer"], str]
Templates = dict[tuple[str, "MetaData"], "DatabaseTemplate"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--jobqueue-server`."""
    parser.getgroup("sa_jobqueue").addoption(
        "--jobqueue-server",
        default="auto",
        metavar="auto|newest|oldest|embedded|local|docker|URL",
        help="PostgreSQL server for the tests. auto: SA_JOBQUEUE_URL, else Docker, embedded wheel, local programs.",
    )


@pytest.fixture(scope="session")
def jobqueue_metadata() -> MetaData:
    """Return the tables of every test database: those of the ready-made models unless overridden."""
    from sa_jobqueue import models

    return models.Base.metadata


@pytest.fixture(scope="session")
def open_jobqueue_server() -> Iterator[OpenServer]:
    """Return a function that opens a server for a value of `--jobqueue-server`, once per session, and stops it at the end.

    Two values that refer to the same programs share one server.
    """
    from sa_jobqueue.testing.binaries import binary_dirs
    from sa_jobqueue.testing.servers import TEST_SETTINGS, open_server

    opened: dict[str, PostgresServer] = {}
    with ExitStack() as servers:

        def open_once(source: str) -> PostgresServer:
            if source in opened:
                return opened[source]
            found = binary_dirs() if source in {"oldest", "newest"} else []
            path = found[0 if source == "oldest" else -1].path if found else None
            server = next((one for one in opened.values() if path and getattr(one, "bin_dir", None) == path), None)
            if server is None:
                server = servers.enter_context(open_server(source, settings=TEST_SETTINGS))
            opened[source] = server
            return server

        yield open_once


@pytest.fixture(scope="session")
def jobqueue_server(request: pytest.FixtureRequest, open_jobqueue_server: OpenServer) -> PostgresServer:
    """Return the running server of this session, chosen by `--jobqueue-server` or by an indirect parameter."""
    source = getattr(request, "param", None) or request.config.getoption("--jobqueue-server")
    return open_jobqueue_server(str(source))


@pytest.fixture(scope="session")
def oldest_server(request: pytest.FixtureRequest, open_jobqueue_server: OpenServer) -> PostgresServer:
    """Return a server of the oldest available release; with only a URL or Docker, that one."""
    return _extreme("oldest", request, open_jobqueue_server)


@pytest.fixture(scope="session")
def newest_server(request: pytest.FixtureRequest, open_jobqueue_server: OpenServer) -> PostgresServer:
    """Return a server of the newest available release; with only a URL or Docker, that one."""
    return _extreme("newest", request, open_jobqueue_server)


@pytest.fixture(scope="session")
def _jobqueue_templates(open_jobqueue_server: OpenServer) -> Iterator[Templates]:
    # It asks for the servers to be torn down before them, whichever fixture a test names first.
    from sqlalchemy.exc import OperationalError

    templates: Templates = {}
    yield templates
    for template in templates.values():
        with suppress(OperationalError):  # a server of a test's own is gone, and its databases with it
            template.drop()


@pytest.fixture
def make_database(request: pytest.FixtureRequest, _jobqueue_templates: Templates) -> Iterator[MakeDatabase]:
    """Return a function that clones a database with the tables of `jobqueue_metadata` on a server and returns its URL.

    Each is dropped after the test, even if sessions are still connected to it.
    """
    from sqlalchemy.exc import OperationalError

    from sa_jobqueue.testing.databases import DatabaseTemplate, create_schema, drop_database

    made: list[str] = []

    def make(server: PostgresServer) -> str:
        # A module may override the tables: each kind has a template of its own.
        metadata: MetaData = request.getfixturevalue("jobqueue_metadata")
        template = _jobqueue_templates.get((server.url, metadata))
        if template is None:
            template = DatabaseTemplate(server.url, lambda url: create_schema(url, metadata))
            _jobqueue_templates[server.url, metadata] = template
        made.append(template.clone())
        return made[-1]

    yield make
    for url in made:
        with suppress(OperationalError):  # as above
            drop_database(url)


@pytest.fixture
def jobqueue_database_url(jobqueue_server: PostgresServer, make_database: MakeDatabase) -> str:
    """Return the URL of a separate database for this test, with the tables of `jobqueue_metadata` and no rows."""
    return make_database(jobqueue_server)


def _extreme(which: str, request: pytest.FixtureRequest, open_jobqueue_server: OpenServer) -> PostgresServer:
    from sa_jobqueue.testing.binaries import binary_dirs

    return open_jobqueue_server(which if binary_dirs() else str(request.config.getoption("--jobqueue-server")))

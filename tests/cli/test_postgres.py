"""`sa-jobqueue postgres`: a development server whose data and URL last."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from configparser import ConfigParser
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from sqlalchemy import create_engine, make_url, text

from sa_jobqueue.testing.binaries import binary_dirs
from tests.fixtures.workers import PATIENCE

pytestmark = pytest.mark.skipif(not binary_dirs(), reason="no programs of PostgreSQL at hand")


@contextmanager
def running(*options: str, stop: signal.Signals = signal.SIGTERM) -> Iterator[str]:
    """Run the command without a terminal, give the URL that it prints, and stop it."""
    command = [sys.executable, "-m", "sa_jobqueue", "postgres", *options]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            assert url, process.communicate(timeout=PATIENCE)[1]
            yield url
        finally:
            process.send_signal(stop)
            output, errors = process.communicate(timeout=PATIENCE)
    assert (process.returncode, output) == (0, ""), errors
    assert "Ctrl-C stops it" in errors


def ask(url: str, *statements: str) -> object:
    engine = create_engine(url)
    with engine.begin() as connection:
        for statement in statements:
            result = connection.execute(text(statement))
        answer = result.scalar() if result.returns_rows else None
    engine.dispose()
    return answer


def assert_fits_into_alembics_configuration(url: str) -> None:
    parser = ConfigParser()
    parser.read_dict({"alembic": {}})
    parser.set("alembic", "sqlalchemy.url", url)
    assert parser.get("alembic", "sqlalchemy.url") == url


@pytest.fixture
def place() -> Iterator[Path]:
    """Give a directory that other accounts can enter: run by root, the server runs as another user."""
    with TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.mark.slow
def test_data_and_url_are_the_same_after_a_restart(place: Path) -> None:
    options = "--data-dir", str(place / "pg"), "--tcp"
    with running(*options) as url:
        assert_fits_into_alembics_configuration(url)
        ask(url, "CREATE TABLE kept AS SELECT 7 AS n")
    with running(*options, stop=signal.SIGINT) as again:
        assert again == url
        assert ask(again, "SELECT n FROM kept") == 7
    port = make_url(url).port
    assert port is not None
    with socket.create_server(("127.0.0.1", port)), running(*options) as moved:
        assert make_url(moved).port != port
        assert ask(moved, "SELECT n FROM kept") == 7


@pytest.mark.slow
def test_without_options_the_data_is_temporary_and_the_url_needs_no_escapes() -> None:
    with running() as url:
        assert_fits_into_alembics_configuration(url)
        assert ask(url, "SELECT 1") == 1
        socket_dir = Path(str(make_url(url).query["host"]))
        assert socket_dir.exists()
    assert not socket_dir.exists()


@pytest.mark.long
def test_a_directory_that_cannot_be_used_is_refused_with_the_way_out(place: Path) -> None:
    older, full, shut = place / "older", place / "full", place / "shut"
    for directory in (older, full, shut):
        directory.mkdir(0o700 if directory is shut else 0o755)
    (older / "PG_VERSION").write_text("9.6\n")
    (full / "notes.txt").touch()
    refuse(older, f"{older} is of PostgreSQL 9.6, installed is", "install PostgreSQL 9.6")
    refuse(full, f"{full} is not empty, and has no data of PostgreSQL", "use an empty directory")
    if os.geteuid() == 0:
        refuse(shut / "data", "PostgreSQL refuses root", "use a directory that all accounts can reach")
    with running("--data-dir", str(place / "new" / "data")):
        refuse(place / "new" / "data", "a server runs on", "use its URL, or stop it")


def refuse(data_dir: Path, reason: str, remedy: str) -> None:
    command = [sys.executable, "-m", "sa_jobqueue", "postgres", "--data-dir", str(data_dir)]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert refused.returncode == 1
    assert (reason in refused.stderr, f"-> {remedy}" in refused.stderr) == (True, True), refused.stderr

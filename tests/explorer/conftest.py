"""The explorer, as a fixture, and how many schedules it ran in all."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine

from tests.explorer import Explorer

_SCHEDULES = pytest.StashKey[int]()


@pytest.fixture
def explorer(engine: Engine, request: pytest.FixtureRequest) -> Iterator[Explorer]:
    """Give an explorer on the test's database."""
    with Explorer(engine) as explorer:
        yield explorer
    stash = request.config.stash
    stash[_SCHEDULES] = stash.get(_SCHEDULES, 0) + explorer.schedules


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Tell how many schedules were run."""
    if schedules := config.stash.get(_SCHEDULES, 0):
        terminalreporter.write_line(f"explorer: {schedules:,} schedules, each kept the invariants or failed its test")

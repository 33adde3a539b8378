"""The explorer, as a fixture, and how many schedules it ran in all."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine

from tests.explorer import Explorer
from tests.fixtures.tallies import tally


@pytest.fixture
def explorer(engine: Engine, request: pytest.FixtureRequest) -> Iterator[Explorer]:
    """Give an explorer on the test's database."""
    with Explorer(engine) as explorer:
        yield explorer
    tally(request.config, "schedules explored, each kept the invariants or failed its test", explorer.schedules)

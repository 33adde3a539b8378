"""Telemetry for tests that ask for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.telemetry.spans import Telemetry


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    """Give providers of the test's own."""
    made = Telemetry()
    yield made
    made.close()

"""Telemetry for tests that ask for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.telemetry.spans import Telemetry


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    """Give providers of the test's own."""
    new_telemetry = Telemetry()
    yield new_telemetry
    new_telemetry.close()

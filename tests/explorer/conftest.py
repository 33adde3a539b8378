"""The explorer, as a fixture."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine

from tests.explorer import Explorer


@pytest.fixture
def explorer(engine: Engine) -> Iterator[Explorer]:
    """Give an explorer on the test's database."""
    with Explorer(engine) as explorer:
        yield explorer

"""How many steps of the state machine were run, reported at the end of the run."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.fixtures.tallies import tally


@pytest.fixture
def count_steps(request: pytest.FixtureRequest) -> Callable[[int], None]:
    """Give a function that adds to the number of steps reported at the end."""
    return lambda steps: tally(
        request.config, "steps of the state machine, the queue agreed with its model after each", steps
    )

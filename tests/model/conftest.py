"""How many steps of the state machine were run, told at the end of the run."""

from __future__ import annotations

from collections.abc import Callable

import pytest

STEPS = pytest.StashKey[int]()


@pytest.fixture
def count_steps(request: pytest.FixtureRequest) -> Callable[[int], None]:
    """Give a function that adds to the number of steps told at the end."""

    def count(steps: int) -> None:
        request.config.stash[STEPS] = request.config.stash.get(STEPS, 0) + steps

    return count


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Tell it."""
    steps = config.stash.get(STEPS, 0)
    if steps:
        terminalreporter.write_line(f"state machine: {steps:,} steps, the queue agreed with its model after each")

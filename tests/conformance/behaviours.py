"""The list of behaviours, each with the test that shows it, and the page that is generated from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

TestT = TypeVar("TestT", bound=Callable[..., Any])

PAGE: Final = Path(__file__).with_name("README.md")
_HEAD: Final = """# Durable execution: behaviours that other engines test

The behaviours were collected from the tests of DBOS, Absurd, Temporal, Inngest, Hatchet and AWS Durable Functions. Each
has a test beside this page, which shows it, or, where ours differs, what happens instead. `python -m tests.conformance`
writes the page from the tests.

"""


@dataclass(frozen=True)
class Behaviour:
    """One behaviour: its number, name and test, and how ours differs; None if it does not."""

    number: int
    name: str
    test: str
    difference: str | None


BEHAVIOURS: Final[dict[int, Behaviour]] = {}


def has(number: int, name: str) -> Callable[[TestT], TestT]:
    """Register a test that shows a behaviour."""
    return _behaviour(number, name, None)


def differs(number: int, name: str, difference: str) -> Callable[[TestT], TestT]:
    """Register a test that shows what happens instead of a behaviour."""
    return _behaviour(number, name, difference)


def _behaviour(number: int, name: str, difference: str | None) -> Callable[[TestT], TestT]:
    def register(test: TestT) -> TestT:
        assert number not in BEHAVIOURS, f"two tests for behaviour {number}"
        BEHAVIOURS[number] = Behaviour(number, name, test.__name__, difference)
        return test

    return register


def page() -> str:
    """Return the text of the page."""
    listed = sorted(BEHAVIOURS.values(), key=lambda behaviour: behaviour.number)
    differing = sum(behaviour.difference is not None for behaviour in listed)
    counts = f"{len(listed)} behaviours: {len(listed) - differing} are the same here, {differing} differ.\n\n"
    rows = [
        f"| {behaviour.number} | {behaviour.name} | {'has' if behaviour.difference is None else 'differs'} "
        f"| {behaviour.difference or ''} |"
        for behaviour in listed
    ]
    return _HEAD + counts + "\n".join(["| # | Behaviour | | Instead |", "|--:|---|---|---|", *rows]) + "\n"

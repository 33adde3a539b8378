"""The parts of a scenario, and its results: values only, nothing runs here."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias, TypeVar

from psycopg.errors import DeadlockDetected
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

C = TypeVar("C")
"""The context of a scenario: what its setup made, such as ids."""

Steps: TypeAlias = Generator[Any, None, Any]
"""The generator of an operation of several steps: every `yield` ends a step, and may name the step that it ends."""


@dataclass(frozen=True, slots=True)
class Operation(Generic[C]):
    """One of those that run at the same time; distinguished by `name`, a word."""

    name: str
    run: Callable[[Session, C], Steps | Any]
    """Called again for each schedule, with a session on a connection of its own. A plain function is a single step."""
    autocommit: bool = field(default=False, kw_only=True)
    """Whether each step commits at its end, as a worker's statements do. Else the end commits, a step of its own."""
    may_raise: tuple[type[BaseException], ...] = field(default=(), kw_only=True)
    """The errors it may end in; a driver's own are found under SQLAlchemy's, too. Any other fails the schedule."""
    settings: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    """Parameters of its connection, such as the guards of a worker's."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[\w.-]+", self.name):
            raise ValueError(f"the name of an operation must be one word, got {self.name!r}")


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one operation ended."""

    committed: bool
    """Whether the last thing it did to its transaction was to commit it."""
    value: Any = None
    """Its result."""
    error: BaseException | None = None
    """Its exception; its transaction was rolled back then."""

    @property
    def kind(self) -> str:
        """Return it in a word: `committed`, `rolled-back`, or the name of the error, a driver's own by preference."""
        if self.error is not None:
            return type(_cause(self.error)).__name__
        return "committed" if self.committed else "rolled-back"

    @property
    def is_deadlock(self) -> bool:
        """Return whether PostgreSQL chose it as the victim of a deadlock."""
        return isinstance(_cause(self.error), DeadlockDetected)

    def is_one_of(self, kinds: tuple[type[BaseException], ...]) -> bool:
        """Return whether its error is of these kinds."""
        return isinstance(self.error, kinds) or isinstance(_cause(self.error), kinds)


def _cause(error: BaseException | None) -> BaseException | None:
    return error.orig if isinstance(error, DBAPIError) and error.orig is not None else error


Outcomes: TypeAlias = Mapping[str, Outcome]
"""How each operation ended, by its name, in the scenario's order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario(Generic[C]):
    """Operations that run at the same time on the same data, and what must be true when all have ended."""

    name: str
    setup: Callable[[Session], C]
    """Makes fresh rows for one schedule and returns those that the operations need; it is committed for it."""
    operations: Sequence[Operation[C]]
    check: Callable[[Connection, C, Outcomes], str | None]
    """Asserts the invariants of that schedule's rows. May return a word for how it ended, which the report counts."""
    allow_deadlock: bool = False
    """Whether an operation may be the victim of a deadlock."""

    def __post_init__(self) -> None:
        names = [operation.name for operation in self.operations]
        if not names or len(set(names)) < len(names):
            raise ValueError(f"scenario {self.name!r}: its operations need names of their own, got {names}")


@dataclass(slots=True)
class Step:
    """One step of a schedule, as it went."""

    operation: str
    number: int
    """Of the operation's own steps, from 1."""
    label: str = ""
    waited_for: tuple[str, ...] = ()
    """The operations that held it up; empty for none."""
    ended_after: int | None = None
    """The place in the schedule of the step that let it go on."""


@dataclass(slots=True)
class Schedule:
    """One order of steps, as it went, and how its operations ended."""

    steps: list[Step] = field(default_factory=list)
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    ending: str | None = None
    """The name that the check gave it."""

    def __str__(self) -> str:
        """Return the line that `Explorer.replay` takes; an asterisk marks a step that had to wait."""
        return " ".join(step.operation + "*" * bool(step.waited_for) for step in self.steps)

    @property
    def blocked(self) -> int:
        """Return how many of its steps had to wait."""
        return sum(bool(step.waited_for) for step in self.steps)

    @property
    def story(self) -> str:
        """Return what happened, a line a step, and how each operation ended."""
        lines = []
        for place, step in enumerate(self.steps, 1):
            line = f"{place:4}. {step.operation} {step.number}: {step.label or 'never ended'}"
            if step.waited_for:
                line += f" (waited for {' and '.join(step.waited_for)}"
                line += f", ended after {step.ended_after})" if step.ended_after else ")"
            lines.append(line)
        for name, outcome in self.outcomes.items():
            lines.append(f"      {name} ended: {outcome.kind}, {outcome.error or outcome.value!r}")
        return "\n".join(lines)


class ScheduleFailed(AssertionError):  # noqa: N818 - it is what pytest shows as a failure
    """A schedule broke an invariant; `schedule` is what happened, and `str(schedule)` replays it."""

    def __init__(self, scenario: str, schedule: Schedule, violated: str) -> None:
        self.schedule = schedule
        self.violated = violated
        super().__init__(
            f"scenario {scenario!r}: {violated}\n  schedule: {schedule}\n{schedule.story}\n"
            f"  again: explorer.replay(scenario, {str(schedule)!r})"
        )


@dataclass(slots=True)
class Report:
    """The result of an exploration."""

    scenario: str
    schedules: int = 0
    """How many different orders ran; each kept the invariants."""
    steps: int = 0
    blocked: int = 0
    """How many of the steps had to wait for a lock."""
    waits: Counter[str] = field(default_factory=Counter)
    """How many of whose steps had to wait, by the operation's name."""
    outcomes: Counter[str] = field(default_factory=Counter)
    """How often the operations ended how, such as `claim=committed cancel=NotFoundError`."""
    endings: Counter[str] = field(default_factory=Counter)
    """How often the check called it what."""
    is_complete: bool = False
    """Whether every order that the locks allow was run: no limit cut it short, and none proved unreachable."""
    unreached: int = 0
    """Orders begun that could not be met again, for PostgreSQL woke two waiters in another order each time."""
    seconds: float = 0.0

    def add(self, schedule: Schedule) -> None:
        """Count one more schedule."""
        self.schedules += 1
        self.steps += len(schedule.steps)
        self.blocked += schedule.blocked
        self.waits.update(step.operation for step in schedule.steps if step.waited_for)
        self.outcomes[" ".join(f"{name}={outcome.kind}" for name, outcome in schedule.outcomes.items())] += 1
        if schedule.ending is not None:
            self.endings[schedule.ending] += 1

    def __str__(self) -> str:
        """Return it in lines, for `pytest -s`."""
        each = 1000 * self.seconds / max(self.schedules, 1)
        head = f"{self.scenario}: {self.schedules} schedules{'' if self.is_complete else ' (not all)'}, "
        head += f"{self.steps} steps, {self.blocked} of them blocked, {each:.1f} ms a schedule"
        counted = [*self.outcomes.most_common(), *self.endings.most_common()]
        return "\n".join([head, *(f"  {count:6} {outcome}" for outcome, count in counted)])

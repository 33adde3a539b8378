"""Something done while an archive run is under way: at one of its steps, or before one of its statements."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from sqlalchemy import Engine, event, text

from sa_jobqueue.pipeline.archive import Progress, Step
from tests.archive.sample_data import chain

MONTH = timedelta(days=30)
ARCHIVED = {chain(number) for number in (1, 2, 3, 4, 5, 6, 8)}


def at(step: Step, do: Callable[[], Any]) -> Callable[[Progress], None]:
    """Return a listener that does something the first time a step was done."""
    steps_taken: list[Step] = []

    def listener(progress: Progress) -> None:
        if progress.step is step and step not in steps_taken:
            steps_taken.append(step)
            do()

    return listener


def execute(engine: Engine, statement: str, *, lock_timeout: str = "60s") -> None:
    with engine.begin() as connection:
        connection.execute(text(f"SET LOCAL lock_timeout = '{lock_timeout}'"))
        connection.execute(text(statement))


@contextmanager
def before_statement(engine: Engine, start: str, do: Callable[[], None]) -> Iterator[None]:
    """Do something the first time that a statement of the archiver's which starts so is about to run."""
    statements: list[str] = []

    def intercept(conn: Any, cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith(start) and not statements:
            statements.append(statement)
            do()

    event.listen(engine, "before_cursor_execute", intercept)
    yield
    event.remove(engine, "before_cursor_execute", intercept)
    assert statements

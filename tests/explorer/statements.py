"""A whole public operation, taken apart into the steps that others can tell from each other: its locks."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

from greenlet import GreenletExit, getcurrent, greenlet  # type: ignore[import-untyped]
from sqlalchemy import event
from sqlalchemy.orm import Session

from tests.explorer.scenario import Steps

C = TypeVar("C")

LOCKS = re.compile(r"\bFOR (NO KEY )?UPDATE\b")


def by_locks(operation: Callable[[Session, C], Any], statements: re.Pattern[str] = LOCKS) -> Callable[[Session, C], Steps]:
    """Return the operation in steps: what comes before a statement that locks, that statement, what comes after it.

    `statements`: which are steps of their own; those between two of them are one step together. The operation runs in a
    greenlet, as it would under an `AsyncSession`, and is left there before such a statement and before the next one.
    """

    def run(session: Session, context: C) -> Steps:
        connection = session.connection()
        main = getcurrent()
        task = greenlet(lambda: operation(session, context))
        lock_kinds = {"any": False, "locking": False, "leaving": False}

        def pause(*arguments: Any) -> None:
            is_locking = bool(statements.search(arguments[2]))
            if lock_kinds["any"] and (is_locking or lock_kinds["locking"]) and not lock_kinds["leaving"]:
                main.switch("locks" if lock_kinds["locking"] else "goes on")
            lock_kinds.update(any=True, locking=is_locking)

        event.listen(connection, "before_cursor_execute", pause)
        try:
            ended = task.switch()
            while not task.dead:
                yield ended
                ended = task.switch()
            return ended
        finally:
            lock_kinds["leaving"] = True
            event.remove(connection, "before_cursor_execute", pause)
            if not task.dead:
                task.throw(GreenletExit)

    return run

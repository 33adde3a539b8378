"""Exceptions of handlers that Python or asyncio would take for their own, carried as ordinary errors.

`StopIteration` and `GeneratorExit` end a coroutine that awaits them, `KeyboardInterrupt` and `SystemExit` end the event
loop that a task raises them in, and `CancelledError` means that an attempt is stopped. Raised by a handler or by what runs
around it they are failures like any other.
"""

from __future__ import annotations

import asyncio


class EscapedError(Exception):
    """Carries an exception that is no `Exception`, or that no future takes. Its cause is recorded."""


def contained(error: BaseException, *, of_thread: bool = False) -> BaseException:
    """Return an exception that can be raised through tasks and futures: itself, or one that carries it.

    `of_thread`: it was raised in a thread, where nothing is cancelled: a `CancelledError` is the handler's own.
    """
    is_cancelled = isinstance(error, asyncio.CancelledError)
    is_ordinary = isinstance(error, Exception) and not isinstance(error, StopIteration)
    if is_ordinary or (is_cancelled and not of_thread):
        return error
    carrier = EscapedError(f"{type(error).__name__} was raised")
    carrier.__cause__ = error
    return carrier.with_traceback(error.__traceback__)


def original(error: BaseException) -> BaseException:
    """Return the exception that was raised, of one that `contained` returned."""
    return error.__cause__ if isinstance(error, EscapedError) and error.__cause__ is not None else error

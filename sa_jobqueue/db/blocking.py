"""Coroutines for synchronous callers: one whose calls block runs to its end without an event loop."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Coroutine, Iterator
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


def blocking(call: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine that blocks where one of an asynchronous caller would wait.

    Raises: RuntimeError if it waits for an event loop.
    """
    try:
        call.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    call.close()
    raise RuntimeError("a step of a synchronous handler waits for the event loop")


def blocking_items(items: AsyncGenerator[T, None]) -> Iterator[T]:
    """Yield the items of an asynchronous generator that blocks in the same way, and close it at the end."""
    try:
        with suppress(StopAsyncIteration):
            while True:
                yield blocking(items.__anext__())
    finally:
        blocking(items.aclose())

"""Dependencies of handlers, and those that are refused when they are registered."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy.orm import Session

from sa_jobqueue import AttemptContext, JobQueue
from sa_jobqueue.errors import InvalidHandlerError, InvalidOptionError

pytestmark = pytest.mark.every_python


class Client:
    """Something that handlers ask for."""


@contextmanager
def lend(attempt: AttemptContext) -> Iterator[Client]:
    yield Client()


def test_an_invalid_dependency_is_refused() -> None:
    queue = JobQueue()
    provider: Any
    for kind, provider, words in (
        ("Client", lend, "must be a class"),
        (Session, lend, "what the worker itself gives"),
        (Client, 7, "must have open and close"),
    ):
        with pytest.raises(InvalidOptionError, match=words):
            queue.dependency(kind, provider)  # type: ignore[arg-type]
    queue.dependency(Client, lend)
    with pytest.raises(InvalidOptionError, match="provided already"):
        queue.dependency(Client, lend)
    with pytest.raises(InvalidHandlerError, match="positional-only"):

        @queue.handler("positional")
        def positional(payload: int, client: Client, /) -> None: ...

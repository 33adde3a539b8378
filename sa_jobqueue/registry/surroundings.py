"""The context managers that the integration of a framework puts around attempts and around the calls of handlers."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol


class Surrounding(Protocol):
    """Functions that a framework's integration puts around attempts and calls, including those of included handlers."""

    def around_attempt(self) -> AbstractContextManager[object]:
        """Return the context manager around an attempt in the task that runs it, outside its middleware; in a child, too."""

    def around_call(self, place: str, session: Any) -> AbstractContextManager[object]:
        """Return the context manager around the call of a handler, in its thread, task or child process.

        `place`: where the handler is declared. `session`: the one that it is given; None if it takes none.
        """

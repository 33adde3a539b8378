"""The handlers that a process declares for a queue."""

from __future__ import annotations

from typing import Any
from weakref import ref


class Declarations:
    """Handlers by job type, for `Job(type_name, ...)`. Their registries own them: here they are not kept alive.

    Where several registries declare a type, the one that was declared last counts, as long as its registry exists.
    """

    def __init__(self) -> None:
        self._handlers: dict[str, list[ref[Any]]] = {}

    def add(self, type_name: str, handler: object) -> None:
        """Add a handler, which takes precedence over those that were added for its type before."""
        references = self._handlers.setdefault(type_name, [])
        references.append(ref(handler, references.remove))

    def get(self, type_name: str) -> Any:
        """Return the handler of a type, None if there is none."""
        # A copy: a collection, also in another thread, removes references meanwhile.
        for reference in (*self._handlers.get(type_name, ()),)[::-1]:
            if (handler := reference()) is not None:
                return handler
        return None

"""Ids as callers give them, checked before the database does: an error there aborts the caller's transaction."""

from __future__ import annotations

from collections.abc import Iterable

from sa_jobqueue.errors import InvalidJobError
from sa_jobqueue.models import JobClass
from sa_jobqueue.models.checks import check_id


def check_ids(model: JobClass, **given: Iterable[object]) -> None:
    """Check lists of ids. Raises: InvalidJobError naming the list, with the place in it."""
    for name, ids in given.items():
        if isinstance(ids, (str, bytes)) or not isinstance(ids, Iterable):
            raise InvalidJobError(name, f"must be a list of ids, not one id, got {ids!r}")
        for index, one in enumerate(ids):
            check_id(model, f"{name}[{index}]", one)


def check_after(model: JobClass, after: object) -> None:
    """Check where a page begins: None, or an id. Raises: InvalidJobError."""
    if after is not None:
        check_id(model, "after", after)

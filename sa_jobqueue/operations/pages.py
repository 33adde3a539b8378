"""Pages of listings: their items, positions and limits."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, Generic, TypeVar

from sqlalchemy import Select, inspect
from sqlalchemy.orm import Session

from sa_jobqueue.errors import InvalidJobError, InvalidOptionError
from sa_jobqueue.models import JobClass
from sa_jobqueue.models.checks import check_id
from sa_jobqueue.statements import listings
from sa_jobqueue.types import JobStatus

T = TypeVar("T")
P = TypeVar("P", bound="Page[Any] | BulkResult[Any]")

MAX_PAGE: Final = 1000
_UNINDEXED: Final = frozenset({JobStatus.COMPLETED, JobStatus.CANCELLED})
"""States without an index: most jobs of a table have them."""
SCAN_LIMIT: Final = 10_000
"""Maximum number of index entries that one call of a listing reads: some tens of milliseconds."""
MAX_SCAN: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """One page of a listing, and the position of the next page.

    A page can be short or empty without being the last one. Iterating over it yields its items.

        page = list_jobs(session, where=where)
        while page.next is not None:
            page = list_jobs(session, where=where, after=page.next)
    """

    items: list[T]
    """Objects of the session, or values such as `QueueStatus`."""
    next: Any
    """The `after` of the next page; None on the last page."""

    def __iter__(self) -> Iterator[T]:
        return iter(self.items)


def collected(list_page: Callable[..., Page[T]], *, limit: int, after: Any = None, seconds: float = math.inf) -> Page[T]:
    """Return a page of `limit` items, from as many pages of a listing as it takes.

    `seconds`: after this time the search stops; the page is then short. At least one page is read.
    """
    ends = time.monotonic() + seconds
    page = list_page(after=after, limit=limit)
    while len(page.items) < limit and page.next is not None and time.monotonic() < ends:
        following = list_page(after=page.next, limit=limit - len(page.items))
        page = Page([*page.items, *following.items], following.next)
    return page


def few_unfinished(
    session: Session,
    model: type[Any],
    statuses: Sequence[JobStatus],
    *,
    queues: Sequence[str] = (),
    fairness_keys: Sequence[str] = (),
    most: int,
) -> Select[Any] | None:
    """Return a selection of the jobs in these states by an index; None if there are more than `most`, or no index."""
    if not statuses or _UNINDEXED.intersection(statuses):
        return None
    unfinished = listings.unfinished(model, statuses, queues=queues, fairness_keys=fairness_keys, limit=most + 1)
    return unfinished if session.scalars(listings.count(unfinished, limit=most + 1)).one() <= most else None


def every_page(list_page: Callable[[Any], P]) -> Iterator[P]:
    """Yield all pages of a listing, or of a change; `list_page` is called with the `after` of each."""
    page = list_page(None)
    yield page
    while page.next is not None:
        page = list_page(page.next)
        yield page


def every_item(list_page: Callable[[Any], Page[T] | BulkResult[T]]) -> Iterator[T]:
    """Yield the items of all pages of a listing, or what all pages of a change changed."""
    for page in every_page(list_page):
        yield from page


def check_lists(**filters: object) -> None:
    """Check that the fields of a filter are lists of values."""
    for name, values in filters.items():
        if isinstance(values, (str, bytes)):
            raise InvalidOptionError(name, f"must be a list, not one value: [{values!r}]")


def check_statuses(statuses: Sequence[JobStatus]) -> None:
    """Check that all values are statuses."""
    values = {status.value for status in JobStatus}
    for status in statuses:
        if status not in values:
            raise InvalidOptionError("statuses", f"must be among {', '.join(sorted(values))}, got {status!r}")


def check_instants(**instants: datetime | None) -> None:
    """Check that times are aware. Raises: InvalidOptionError naming the one that is not."""
    for name, instant in instants.items():
        if instant is not None and (not isinstance(instant, datetime) or instant.utcoffset() is None):
            raise InvalidOptionError(name, f"must be an aware datetime, such as datetime.now(UTC), got {instant!r}")


def member_or_text(kind: type[StrEnum], value: str) -> str:
    """Return the member of an enum, or the value itself if it is of a later release, which may add members."""
    return kind(value) if value in kind.__members__.values() else value


class Filter:
    """Base class of filters: checks its fields by their names and defaults."""

    __slots__ = ()

    def __post_init__(self) -> None:
        for criterion in fields(self):  # type: ignore[arg-type]
            value = getattr(self, criterion.name)
            if criterion.default == ():
                check_lists(**{criterion.name: value})
            elif criterion.name.endswith(("_after", "_before")):
                check_instants(**{criterion.name: value})
            if criterion.name == "statuses":
                check_statuses(value)


def check_limit(limit: int, scan_limit: int = SCAN_LIMIT) -> None:
    """Check a page's `limit` and `scan_limit`."""
    for name, value, most in (("limit", limit, MAX_PAGE), ("scan_limit", scan_limit, MAX_SCAN)):
        if not isinstance(value, int) or not 1 <= value <= most:
            raise InvalidOptionError(name, f"must be from 1 to {most}, got {value}")


def check_position(after: object, *kinds: type) -> None:
    """Check that `after` has the shape of a position: one value, or a tuple of several."""
    parts = after if len(kinds) > 1 and isinstance(after, tuple) else (after,)
    if after is None or (len(parts) == len(kinds) and all(map(isinstance, parts, kinds))):
        return
    raise InvalidOptionError("after", f"must be the `next` of a page of this listing, or None, got {after!r}")


def check_ids(model: JobClass, **ids_by_name: Iterable[object]) -> None:
    """Check lists of ids, which the database would refuse with the caller's transaction.

    Raises: InvalidJobError naming the list, with the place in it.
    """
    for name, ids in ids_by_name.items():
        if isinstance(ids, (str, bytes)) or not isinstance(ids, Iterable):
            raise InvalidJobError(name, f"must be a list of ids, not one id, got {ids!r}")
        for index, job_id in enumerate(ids):
            check_id(model, f"{name}[{index}]", job_id)


def check_after(model: JobClass, after: object) -> None:
    """Check where a page begins: None, or an id. Raises: InvalidJobError."""
    if after is not None:
        check_id(model, "after", after)


def check_columns(entity: Any, columns: Sequence[str]) -> None:
    """Check that an entity has these columns."""
    check_lists(columns=columns)
    column_names = inspect(entity).column_attrs.keys()
    for name in columns:
        if name not in column_names:
            raise InvalidOptionError("columns", f"must be among {', '.join(sorted(column_names))}, got {name!r}")


def scanned_page(session: Session, statement: Select[Any], *, limit: int, scan_limit: int) -> Page[Any]:
    """Read one page; each row has its id, its position in the scan, whether it matches, and its object."""
    rows = session.execute(statement).all()
    matching_rows = [row for row in rows if row.fits]
    items = [row[3] for row in matching_rows[:limit]]
    if len(matching_rows) > limit:
        return Page(items, matching_rows[limit - 1].id)
    return Page(items, rows[-1].id if rows and rows[-1].place == scan_limit else None)


def ordered_page(session: Session, statement: Select[Any], *, limit: int) -> Page[Any]:
    """Read one page of rows: the value that orders them, and the object. One row more than the page is selected."""
    rows = session.execute(statement).all()
    return Page([row[1] for row in rows[:limit]], rows[limit - 1][0] if len(rows) > limit else None)


def page_of(items: Sequence[T], *, limit: int, position: Callable[[T], Any]) -> Page[T]:
    """Return a page of items, of which one more than `limit` was selected; `position` returns an item's position."""
    return Page(list(items[:limit]), position(items[limit - 1]) if len(items) > limit else None)


@dataclass(frozen=True, slots=True)
class BulkResult(Generic[T]):
    """The rows that one call changed, and the position of the next call.

    Iterating it gives the ids. An operation with a `limit` changes one page a call:

        result = redrive_dead_letters(session, by="ann")
        session.commit()
        while result.next is not None:
            result = redrive_dead_letters(session, by="ann", after=result.next)
            session.commit()
    """

    ids: list[T]
    """The ids of the rows changed; of queues, job types and schedules, the names."""
    matched: int
    """Number of rows that the call was about: those changed, and those that needed no change."""
    next: Any = None
    """The `after` of the next call; None if there is nothing left, and for operations without a `limit`."""
    conflicts: Mapping[T, str] = field(default_factory=dict)
    """Rows that another one keeps from being changed, each with the reason; only a redrive has any."""

    @property
    def changed(self) -> int:
        """Number of rows changed."""
        return len(self.ids)

    def __iter__(self) -> Iterator[T]:
        return iter(self.ids)

"""Parts that forms for named rows share: names, pausing and resuming, and changes of settings."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any, Final, TypeVar

from starlette.exceptions import HTTPException

from sa_jobqueue.dashboard.parameters import ParameterError
from sa_jobqueue.dashboard.screens.base import Changes, Context
from sa_jobqueue.display.durations import write_duration
from sa_jobqueue.operations.pages import BulkResult
from sa_jobqueue.policies.rates import RateAlgorithm
from sa_jobqueue.registry.limits import Limits, settings_of

S = TypeVar("S", bound=Limits)
MAX_NAMES: Final = 200
"""Maximum number of names in one form."""
LISTED: Final = 20
"""Maximum number of rows that a preview or an outcome lists."""


def names(context: Context, of: str) -> list[str]:
    """Return the names in a form. Raises: ParameterError without any."""
    found = context.params.texts("name", at_most=MAX_NAMES)
    if not found:
        raise ParameterError("name", f"is missing: the name of a {of}")
    return found


def name(context: Context, of: str) -> str:
    """Return the one name in a form. Raises: ParameterError."""
    found = names(context, of)
    if len(found) > 1:
        raise ParameterError("name", f"may have one value, got {len(found)}")
    return found[0]


def cut(lines: Sequence[str], count: int = 0) -> list[str]:
    """Return the first lines, and how many more there are of these or of `count`."""
    more = max(len(lines), count) - LISTED
    return [*lines[:LISTED], f"and {more:,} more"] if more > 0 else list(lines)


def changes(
    result: BulkResult[str], given: Iterable[str], others: Callable[[str], str], title: Callable[[str], str] = str
) -> Changes:
    """Return the changes of named rows: those that change, then those `given` ones that do not, with the reason."""
    rest = [f"{title(one)} {others(one)}" for one in given if one not in result.ids]
    return Changes(count=result.changed, details=cut([*map(title, result.ids), *rest]), ids=result.ids)


def seen(updated_at: datetime | None) -> str:
    """Return the hidden value of a form: when the row that it shows was last changed."""
    return "" if updated_at is None else updated_at.astimezone(UTC).isoformat()


def refuse_if_changed(context: Context, updated_at: datetime | None) -> None:
    """Refuse a form that shows settings which were changed since. Raises: HTTPException."""
    if (context.params.text("seen") or "") != seen(updated_at):
        what = "deleted" if updated_at is None else f"changed at {updated_at.astimezone(UTC):%H:%M:%S} UTC"
        raise HTTPException(409, f"It was {what}, after this form was opened. Nothing was changed: open the form again.")


def settings(context: Context, of: type[S]) -> S:
    """Return the settings in a form; an empty field is no limit, or the default. Raises: ParameterError."""
    params = context.params
    read: dict[type, Callable[[str], Any]] = {
        int: params.whole,
        float: params.decimal,
        timedelta: params.duration,
        RateAlgorithm: params.text,
    }
    found = {name: read[setting.kind](name) for name, setting in settings_of(of).items()}
    return of(**{name: value for name, value in found.items() if value is not None})


def differences(before: Mapping[str, Any], after: Mapping[str, Any], *, hidden: Collection[str] = ()) -> list[str]:
    """Return what would be changed, one line for each setting. `hidden`: settings whose values are not shown."""
    return [
        f"{column.replace('_', ' ')}: {'changed' if column in hidden else f'{_shown(before[column])} → {_shown(value)}'}"
        for column, value in after.items()
        if before[column] != value
    ]


def _shown(value: Any) -> str:
    match value:
        case None | "":
            return "none"
        case bool():
            return "yes" if value else "no"
        case timedelta():
            return write_duration(value)
        case Enum():
            return str(value.value)
    return str(value)

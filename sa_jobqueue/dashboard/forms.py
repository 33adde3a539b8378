"""Parts that forms share: ids and names, and the acts of named rows: pause, resume, delete, change the settings."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any, Final, TypeVar

from sqlalchemy.orm import Session
from starlette.exceptions import HTTPException

from sa_jobqueue.dashboard.parameters import ParameterError
from sa_jobqueue.dashboard.screens.base import Changes, Context
from sa_jobqueue.display.durations import write_duration
from sa_jobqueue.operations.pages import BulkResult
from sa_jobqueue.registry.settings import Limits, settings_of

Operation = Callable[..., Any]
S = TypeVar("S", bound=Limits)
MAX_NAMES: Final = 200
"""Maximum number of names in one form."""
LISTED: Final = 20
"""Maximum number of rows that a preview or an outcome lists."""


def names(context: Context, noun: str) -> list[str]:
    """Return the names in a form. Raises: ParameterError without any."""
    names_in_form = context.params.texts("name", at_most=MAX_NAMES)
    if not names_in_form:
        raise ParameterError("name", f"is missing: the name of a {noun}")
    return names_in_form


def name(context: Context, noun: str) -> str:
    """Return the one name in a form. Raises: ParameterError."""
    names_in_form = names(context, noun)
    if len(names_in_form) > 1:
        raise ParameterError("name", f"may have one value, got {len(names_in_form)}")
    return names_in_form[0]


def ids(context: Context, noun: str) -> list[Any]:
    """Return the ids of jobs or chains in a form. Raises: ParameterError without any."""
    ids_in_form = context.params.job_ids("id", context.model)
    if not ids_in_form:
        raise ParameterError("id", f"must name at least one {noun}: select one first")
    return ids_in_form


def cut(lines: Sequence[str], count: int = 0) -> list[str]:
    """Return the first lines, and how many more there are of these or of `count`."""
    more = max(len(lines), count) - LISTED
    return [*lines[:LISTED], f"and {more:,} more"] if more > 0 else list(lines)


def folded(rows: Iterable[tuple[str, Any, str]], count: int = 0) -> list[str]:
    """Return a line for each row of a preview, and one for those of a type and text together, with their number.

    `rows`: type, id and text of each. `count`: of all rows, if `rows` are only the first.
    """
    ids: dict[tuple[str, str], list[Any]] = {}
    for type_name, row_id, text in rows:
        ids.setdefault((type_name, text), []).append(row_id)
    lines = [
        f"{type_name} {group[0]} {text}" if len(group) == 1 else f"{len(group):,} × {type_name} {text}, the first {group[0]}"
        for (type_name, text), group in ids.items()
    ]
    more = count - sum(map(len, ids.values()))
    return cut(lines, len(lines) + max(more, 0))


def seen(updated_at: datetime | None) -> str:
    """Return the hidden value of a form: when the row that it shows was last changed."""
    return "" if updated_at is None else updated_at.astimezone(UTC).isoformat()


def settings(context: Context, settings_class: type[S]) -> S:
    """Return the settings in a form; an empty field is no limit, or the default. Raises: ParameterError."""
    params = context.params
    read: dict[type, Callable[[str], Any]] = {
        int: params.whole,
        float: params.decimal,
        timedelta: params.duration,
    }
    values = {name: read[setting.kind](name) for name, setting in settings_of(settings_class).items()}
    return settings_class(**{name: value for name, value in values.items() if value is not None})


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


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedRows:
    """A kind of rows that have a name: queues, job types or schedules. Their acts, and how a form names them.

    `noun`: in errors. `listed`, `get`: operations that return their states. `name`: the attribute of a state with the name.
    `has_keys`: whether a fairness key is part of the name. `titles`: returns, for a request and a key, how rows are called.
    """

    noun: str
    listed: Operation
    get: Operation
    name: str = "name"
    has_keys: bool = False
    titles: Callable[[Context, str], Callable[[str], str]] = lambda context, key: str

    def key(self, context: Context) -> dict[str, str]:
        """Return the fairness key in a form as an argument of operations; empty for rows without keys."""
        return {"fairness_key": context.params.text("fairness_key") or ""} if self.has_keys else {}

    def change(self, operation: Operation, unchanged: str) -> Callable[[Context, Session], Changes]:
        """Return the `run` of an act on one or more rows. `unchanged`: why a row stays as it is."""

        def run(context: Context, session: Session) -> Changes:
            row_names, key = names(context, self.noun), self.key(context)
            result: BulkResult[str] = operation(session, row_names, **key, **context.change)
            unchanged_names = [row_name for row_name in row_names if row_name not in result.ids]
            unchanged_rows = (
                self.listed(session, names=unchanged_names, model=context.model, **key) if unchanged_names else ()
            )
            pausers = {
                getattr(row, self.name): row.paused_by or "an unknown user" for row in unchanged_rows if row.paused_at
            }
            title = self.titles(context, key.get("fairness_key", ""))
            lines = [
                f"{title(row_name)} {unchanged}{f', by {pausers[row_name]}' if row_name in pausers else ''}"
                for row_name in unchanged_names
            ]
            details = cut([*map(title, result.ids), *lines])
            return Changes(count=result.changed, details=details, ids=result.ids)

        return run

    def locked(self, context: Context, session: Session) -> Any:
        """Return the state of the row in a form, None without one; its row is locked, unless this is a preview.

        Raises: HTTPException if it was changed after the form was opened.
        """
        row_name, key = name(context, self.noun), self.key(context)
        row = next(iter(self.listed(session, names=[row_name], model=context.model, **key)), None)
        if context.is_preview:
            return row
        if row is not None and row.created_at is not None:
            row = self.get(session, row_name, for_update=True, model=context.model, **key)
        updated_at = row.updated_at if row else None
        if (context.params.text("seen") or "") != seen(updated_at):
            change = "deleted" if updated_at is None else f"changed at {updated_at.astimezone(UTC):%H:%M:%S} UTC"
            raise HTTPException(
                409, f"It was {change}, after this form was opened. Nothing was changed: open the form again."
            )
        return row

    def upsert(self, context: Context, session: Session, operation: Operation, after: Any, default: Any) -> Changes:
        """Write the settings `after` of the row in a form; `default`: those of a row that does not exist."""
        row = self.locked(context, session)
        before = default.row if row is None else {column: getattr(row, column) for column in default.row}
        is_written = operation(session, after, **context.change)
        details = differences(before, after.row)
        return Changes(count=int(is_written), details=details, ids=[name(context, self.noun)])

"""Options of `format("jobqueue")`: names, meanings and limits, validated before any connection is opened.

Names are in camel case or with underscores; Spark ignores their case. An option that is unknown, or does not apply to this
kind of read or write, is an error instead of being ignored.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from enum import StrEnum
from functools import partial
from typing import Any, Final, Generic, NoReturn, TypeVar

from sa_jobqueue.db.urls import read_url
from sa_jobqueue.errors import InvalidJobError, InvalidOptionError
from sa_jobqueue.errors.removed import refuse_removed
from sa_jobqueue.layout import Layout
from sa_jobqueue.models.checks import check_name, check_text
from sa_jobqueue.pipeline.history import DATASETS
from sa_jobqueue.types import JobStatus

T = TypeVar("T")


class Use(StrEnum):
    """Kind of read or write, which Spark reveals only after it has passed the options."""

    READ = "spark.read"
    STREAM = "spark.readStream"
    WRITE = "df.write"
    STREAM_WRITE = "df.writeStream"


READING: Final = frozenset({Use.READ, Use.STREAM})
WRITING: Final = frozenset({Use.WRITE, Use.STREAM_WRITE})
ALWAYS: Final = READING | WRITING

IGNORED: Final = frozenset({"paths", "isuserspecifiedschema", "checkpointlocation", "queryname"})
"""Options that Spark itself adds to a source."""


NO_TABLE: Final = "a table of Spark's catalog loses its OPTIONS when it is read or written, so it cannot be a queue"
IN_PLACE_OF_TABLE: Final = (
    'read a CREATE TEMPORARY VIEW ... USING jobqueue OPTIONS (url "...", dataset "jobs"), and write a DataFrame, as in '
    'spark.table(...).write.format("jobqueue").option("url", ...)'
)


REDACTION: Final = r"(?<=://)[^\s\"\\]*(?=@)|(?<=password=)[^&\s\"'\\]+"
"""Value for `spark.sql.redaction.string.regex` that removes users and passwords from URLs, which Spark Connect writes to
its event log."""


@dataclass(frozen=True, slots=True)
class Secret(Generic[T]):
    """A value that is never rendered by repr, str or format."""

    value: T = field(repr=False)


Read = Callable[[str, str], Any]
"""Converts an option's text, given the option's name and the text."""


@dataclass(frozen=True, slots=True)
class Option:
    """One option: `read` converts `(name, text)` into its value; `default` applies if it is not given."""

    name: str
    uses: frozenset[Use]
    doc: str
    read: Read
    default: Any = None


def text(name: str, value: str) -> str:
    """Read a non-empty text."""
    return value.strip() or refuse(name, "must not be empty")


def texts(name: str, value: str) -> tuple[str, ...]:
    """Read a comma-separated list."""
    return tuple(part.strip() for part in value.split(",") if part.strip()) or refuse(name, "must not be empty")


def flag(name: str, value: str) -> bool:
    """Read true or false."""
    flags = {"true": True, "false": False}
    return flags[value.lower()] if value.lower() in flags else refuse(name, f"must be true or false, got {value!r}")


def whole(name: str, value: str, *, low: int, high: int) -> int:
    """Read a whole number between two bounds, inclusive."""
    try:
        read = int(value)
    except ValueError:
        refuse(name, f"must be a whole number, got {value!r}")
    return read if low <= read <= high else refuse(name, f"must be from {low:,} to {high:,}, got {read:,}")


def seconds(name: str, value: str, *, longest: timedelta = timedelta(days=1)) -> timedelta:
    """Read a positive number of seconds."""
    try:
        read = timedelta(seconds=float(value))
    except (ValueError, OverflowError):
        refuse(name, f"must be a number of seconds, got {value!r}")
    in_bounds = timedelta(0) < read <= longest
    return read if in_bounds else refuse(name, f"must be above 0 and at most {longest.total_seconds():,.0f} s, got {value}")


def instant(name: str, value: str) -> datetime:
    """Read a date or a time in ISO 8601; one without an offset is UTC, whatever the session's time zone."""
    try:
        read = datetime.fromisoformat(value.strip())
    except ValueError:
        refuse(name, f"must be a time such as 2026-01-31 or 2026-01-31T12:00:00+01:00, got {value!r}")
    return read if read.tzinfo else read.replace(tzinfo=UTC)


def one_of(name: str, value: str, *, keywords: tuple[str, ...]) -> str:
    """Read one of several keywords, ignoring case."""
    keyword = {word.lower(): word for word in keywords}.get(value.strip().lower())
    return keyword or refuse(name, f"must be one of {', '.join(keywords)}, got {value!r}")


def _url(name: str, value: str) -> Secret[str]:
    read_url(value, option=name)
    return Secret(value)


def _statuses(name: str, value: str) -> tuple[str, ...]:
    return tuple(one_of(name, part, keywords=tuple(JobStatus)) for part in texts(name, value))


def _xid(name: str, value: str) -> int:
    return whole(name, value, low=0, high=2**63 - 1)


def _starting(name: str, value: str) -> str | int:
    word = value.strip().lower()
    is_valid = word.isdecimal() or word in {"earliest", "latest"}
    is_valid or refuse(name, f"must be earliest, latest or a transaction id, got {value!r}")
    return _xid(name, word) if word.isdecimal() else word


def _identifier(name: str, value: str) -> str:
    try:
        Layout(value) if name == "schema" else Layout(prefix=value)
    except InvalidOptionError as error:
        refuse(name, error.reason)
    return value


def _text_of(name: str, value: str, *, check: Callable[[str, str], object]) -> str:
    checked(check, name, value)
    return value


ZONE_DOC: Final = "in UTC unless it has an offset"

OPTIONS: Final = (
    Option("url", ALWAYS, "Database URL, `postgresql://...`. Default: `SA_JOBQUEUE_URL`, then libpq's `PGSERVICE`.", _url),
    Option("passwordFile", ALWAYS, "File with only the password, on the driver and the executors.", text),
    Option("schema", ALWAYS, "Schema of the job tables. Default: the search path.", _identifier),
    Option("prefix", ALWAYS, "Prefix of the job table names.", _identifier),
    Option("app", ALWAYS, "`module:attribute` of the JobQueue or Job model, instead of `schema` and `prefix`.", text),
    Option("statementTimeout", ALWAYS, "Timeout of each statement in seconds.", seconds, timedelta(minutes=10)),
    Option(
        "dataset",
        READING,
        "Dataset to read, as passed to `load(...)`.",
        partial(one_of, keywords=tuple(DATASETS)),
    ),
    Option("columns", READING, "Columns to read, in this order. Default: all.", texts),
    Option("excludePrivate", READING, "Whether to leave out the columns with payload data.", flag, False),
    Option("redact", READING, "Comma-separated job types, with `*` and `?`, whose payloads are not read.", texts, ()),
    Option("queue", READING, "Comma-separated queues to read. Default: all.", texts, ()),
    Option("type", READING, "Comma-separated job types to read. Default: all.", texts, ()),
    Option("status", READING, "Comma-separated job states to read. Default: all.", _statuses, ()),
    Option(
        "numPartitions",
        READING,
        "Number of partitions, each read over its own connection. Default for a table: by its size.",
        partial(whole, low=1, high=10_000),
    ),
    Option(
        "createdAfter",
        frozenset({Use.READ}),
        f"Only rows created (enqueued, started, died) at or after this time; {ZONE_DOC}.",
        instant,
    ),
    Option("createdBefore", frozenset({Use.READ}), f"Only rows created before this time; {ZONE_DOC}.", instant),
    Option(
        "completedAfter",
        frozenset({Use.READ}),
        f"Only rows ended (completed, resolved) at or after this time; {ZONE_DOC}.",
        instant,
    ),
    Option("completedBefore", frozenset({Use.READ}), f"Only rows ended before this time; {ZONE_DOC}.", instant),
    Option(
        "upTo",
        frozenset({Use.READ}),
        "`now`: all committed rows; `watermark`: only rows that no open transaction can add to, as of planning.",
        partial(one_of, keywords=("now", "watermark")),
        "now",
    ),
    Option(
        "startingXid",
        frozenset({Use.STREAM}),
        "Where a stream without a checkpoint starts: `earliest`, `latest`, or a transaction id.",
        _starting,
        "earliest",
    ),
    Option(
        "maxRowsPerTrigger",
        frozenset({Use.STREAM}),
        "Approximate maximum number of rows per batch; rows of one transaction are never split.",
        partial(whole, low=1, high=2**31 - 1),
    ),
    Option(
        "writeId",
        frozenset({Use.WRITE}),
        "The caller's name for this write, such as `nightly-2026-11-20`: a second write of that name does nothing.",
        partial(_text_of, check=check_text),
    ),
    Option(
        "onRepeat",
        WRITING,
        "Repeated write or batch: `skip` ignores it; `check`, the default, fails if a row is not among those committed.",
        partial(one_of, keywords=("skip", "check")),
    ),
    Option(
        "onDuplicate",
        WRITING,
        "Row whose deduplication key an open chain has: `skip` it, or `fail` the whole write.",
        partial(one_of, keywords=("skip", "fail")),
        "skip",
    ),
    Option(
        "mode",
        WRITING,
        "Invalid row, or an `id` that is taken: `FAILFAST` ends the write, `PERMISSIVE` keeps the row in `job_bulk_reject`.",
        partial(one_of, keywords=("FAILFAST", "PERMISSIVE")),
        "FAILFAST",
    ),
    Option("type", WRITING, "The job type of rows that have none.", partial(_text_of, check=check_name)),
    Option("writtenBy", WRITING, "Who writes, for the ledger; the host's name unless given.", text),
)
"""All options."""


class Options(Mapping[str, Any]):
    """The options of one use by name, with defaults. Neither its repr nor its pickle contains a secret."""

    def __init__(self, use: Use, values: Mapping[str, Any], set_names: frozenset[str] = frozenset()) -> None:
        self.use = use
        self.set_names = set_names
        self._values = dict(values)

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        settings = (f"{name}={self._values[name]!r}" for name in sorted(self.set_names))
        return f"<Options of {self.use}: {', '.join(settings) or 'none'}>"


def plain(name: str) -> str:
    """Return a name normalized for comparison: without case and underscores."""
    return name.replace("_", "").lower()


def read_options(texts_by_name: Mapping[str, str | None], *uses: Use) -> Options:
    """Read the options of a use, or of several; None is not given. Raises: InvalidOptionError for the first invalid one."""
    use = uses[0]
    of_use = {plain(option.name): option for option in OPTIONS if option.uses & set(uses)}
    values = {option.name: option.default for option in of_use.values()}
    set_names: set[str] = set()
    for name, value in texts_by_name.items():
        if value is None:
            continue
        if name == "path" and use in WRITING:
            refuse(name, f"save() and start() take none for a queue, got {value!r}")
        key = "dataset" if name == "path" else plain(name)
        if key in IGNORED:
            continue
        if key not in of_use:
            refuse_removed([name])
            elsewhere = sorted({other_use for option in OPTIONS if plain(option.name) == key for other_use in option.uses})
            hint = f"; it belongs to {' and '.join(elsewhere)}" if elsewhere else suggestion(name, [*map(str, values)])
            refuse(name, f"is not an option of {use}{hint}")
        option = of_use[key].name
        if option in set_names:
            refuse(option, "is given twice")
        set_names.add(option)
        values[option] = of_use[key].read(option, value)
    if "app" in set_names and set_names & {"schema", "prefix"}:
        refuse("app", "already identifies the queue; leave out schema and prefix")
    return Options(use, values, frozenset(set_names))


def refuse_table(texts_by_name: Mapping[str, str], *, is_write: bool = False) -> None:
    """Refuse a table of Spark's catalog. An INSERT INTO has no options: the environment's database would be written to."""
    if "provider" in texts_by_name:  # which Spark adds for a table, and only then
        refuse("provider", f"is no option: {NO_TABLE}. {IN_PLACE_OF_TABLE[0].upper()}{IN_PLACE_OF_TABLE[1:]}")
    if is_write and not {plain(name) for name in texts_by_name} - IGNORED:
        refuse("url", f"is missing, and so is every other option. {NO_TABLE}: {IN_PLACE_OF_TABLE}")


def suggestion(name: str, candidates: Sequence[str]) -> str:
    """Return the end of a message about an unknown name: which one was meant, or all of them."""
    names = {plain(candidate): candidate for candidate in candidates}
    close = get_close_matches(plain(name), names, n=1)
    return f"; did you mean {names[close[0]]}?" if close else f"; known: {', '.join(candidates)}"


def refuse(option: str, reason: str) -> NoReturn:
    """Raise InvalidOptionError. The value in the reason may be a URL that was passed in the wrong place."""
    raise InvalidOptionError(option, re.sub(REDACTION, "***", reason)) from None


def checked(check: Callable[..., object], *value: Any, **keywords: Any) -> None:
    """Run a check of a job's field, whose value is that of an option. Raises: InvalidOptionError."""
    try:
        check(*value, **keywords)
    except InvalidJobError as error:
        refuse(error.field, error.reason)

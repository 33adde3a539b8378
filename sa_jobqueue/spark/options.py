"""The options of `format("jobqueue")`: their names, meanings and bounds, read before anything is connected to.

A name may be written in camel case or with underscores; Spark does not tell their case. What is unknown, or known but
meaningless for this kind of reading or writing, is an error: an option that is ignored is a trap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from enum import StrEnum
from functools import partial
from typing import Any, Final, NoReturn

from sa_jobqueue.db.urls import read_url
from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.history import DATASETS
from sa_jobqueue.layout import Layout
from sa_jobqueue.spark.errors import UnknownOptionError
from sa_jobqueue.types import JobStatus


class Use(StrEnum):
    """What a data source is asked for. Spark does not say it when the options are given, only later."""

    READ = "spark.read"
    STREAM = "spark.readStream"
    WRITE = "df.write"
    STREAM_WRITE = "df.writeStream"


READING: Final = frozenset({Use.READ, Use.STREAM})
WRITING: Final = frozenset({Use.WRITE, Use.STREAM_WRITE})
ALWAYS: Final = READING | WRITING

IGNORED: Final = frozenset({"path", "paths", "isuserspecifiedschema", "checkpointlocation", "queryname"})
"""What Spark itself adds to the options of a source."""


REDACTION: Final = r"(?<=://)[^@\s/]*(?=@)|(?<=password=)[^&\s\"\\]+"
"""For Spark Connect, which writes what its clients ask for into its event log, options too: set as
`spark.sql.redaction.string.regex` of the session it takes users and passwords out of URLs. A password in `passwordFile`,
or in the server's `SA_JOBQUEUE_URL`, never gets there."""


class Secret:
    """A text that is never rendered: not by repr, str or format, only by `reveal`."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return "Secret(***)"

    __str__ = __repr__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)

    def reveal(self) -> str:
        """Return the text."""
        return self._text


Read = Callable[[str, str], Any]
"""Makes a value of an option's name and text. Raises: InvalidOptionError."""


@dataclass(frozen=True, slots=True)
class Option:
    """One option: `read` makes its value of `(name, text)`; `default` stands where it is not given."""

    name: str
    uses: frozenset[Use]
    doc: str
    read: Read
    default: Any = None


def text(name: str, given: str) -> str:
    """Read a text that is not empty."""
    return given.strip() or _refuse(name, "must not be empty")


def texts(name: str, given: str) -> tuple[str, ...]:
    """Read a list, its parts separated by commas."""
    return tuple(part.strip() for part in given.split(",") if part.strip()) or _refuse(name, "must not be empty")


def flag(name: str, given: str) -> bool:
    """Read true or false."""
    known = {"true": True, "false": False}
    return known[given.lower()] if given.lower() in known else _refuse(name, f"must be true or false, got {given!r}")


def whole(name: str, given: str, *, low: int, high: int) -> int:
    """Read a whole number between two bounds, both included."""
    try:
        read = int(given)
    except ValueError:
        _refuse(name, f"must be a whole number, got {given!r}")
    return read if low <= read <= high else _refuse(name, f"must be from {low:,} to {high:,}, got {read:,}")


def seconds(name: str, given: str, *, longest: timedelta = timedelta(days=1)) -> timedelta:
    """Read a number of seconds above zero."""
    try:
        read = timedelta(seconds=float(given))
    except (ValueError, OverflowError):
        _refuse(name, f"must be a number of seconds, got {given!r}")
    in_bounds = timedelta(0) < read <= longest
    return read if in_bounds else _refuse(name, f"must be above 0 and at most {longest.total_seconds():,.0f} s, got {given}")


def instant(name: str, given: str) -> datetime:
    """Read a date or a time in ISO 8601; one without an offset is UTC."""
    try:
        read = datetime.fromisoformat(given.strip())
    except ValueError:
        _refuse(name, f"must be a time such as 2026-01-31 or 2026-01-31T12:00:00+01:00, got {given!r}")
    return read if read.tzinfo else read.replace(tzinfo=UTC)


def one_of(name: str, given: str, *, known: tuple[str, ...]) -> str:
    """Read one of some words, in any case."""
    found = {word.lower(): word for word in known}.get(given.strip().lower())
    return found or _refuse(name, f"must be one of {', '.join(known)}, got {given!r}{_meant(given, known)}")


def _url(name: str, given: str) -> Secret:
    read_url(given, option=name)
    return Secret(given)


def _statuses(name: str, given: str) -> tuple[str, ...]:
    return tuple(one_of(name, part, known=tuple(JobStatus)) for part in texts(name, given))


def _xid(name: str, given: str) -> int:
    return whole(name, given, low=0, high=2**63 - 1)


def _starting(name: str, given: str) -> str | int:
    return given.lower() if given.lower() in {"earliest", "latest"} else _xid(name, given)


def _identifier(name: str, given: str) -> str:
    try:
        Layout(given) if name == "schema" else Layout(prefix=given)
    except InvalidOptionError as error:
        _refuse(name, error.reason)
    return given


XID_DOC: Final = "by the transaction that last changed a row, the column `xid`"

OPTIONS: Final = (
    Option("url", ALWAYS, "The database, `postgresql://...`; without it `SA_JOBQUEUE_URL`, else libpq's `PGSERVICE`.", _url),
    Option("passwordFile", ALWAYS, "A file that holds the password and nothing else, on the driver and executors.", text),
    Option("schema", ALWAYS, "The schema of the queue's tables; the search path's without.", _identifier),
    Option("prefix", ALWAYS, "What the names of the queue's tables begin with.", _identifier),
    Option("app", ALWAYS, "`module:attribute` of the application's JobQueue or Job model, instead of the two.", text),
    Option("statementTimeout", ALWAYS, "Seconds that one statement may take.", seconds, timedelta(minutes=10)),
    Option("dataset", READING, "What to read, as `load(...)` names it.", partial(one_of, known=tuple(DATASETS))),
    Option("columns", READING, "Which columns, in this order; all without.", texts),
    Option("excludePrivate", READING, "Leave out the columns that hold what users put into payloads.", flag, False),
    Option("redact", READING, "Job types, separated by commas, `*` and `?` for others: payloads not to be read.", texts, ()),
    Option("queue", READING, "Only these queues, separated by commas.", texts, ()),
    Option("type", READING, "Only these job types, separated by commas.", texts, ()),
    Option("status", READING, "Only jobs in these states, separated by commas.", _statuses, ()),
    Option(
        "numPartitions",
        READING,
        "In how many parts to read, each by a connection of its own; of a table, by its size without.",
        partial(whole, low=1, high=10_000),
    ),
    Option("createdAfter", frozenset({Use.READ}), "Made at this time or later: enqueued, started, died.", instant),
    Option("createdBefore", frozenset({Use.READ}), "Made before this time.", instant),
    Option("completedAfter", frozenset({Use.READ}), "Ended at this time or later: completed, ended, resolved.", instant),
    Option("completedBefore", frozenset({Use.READ}), "Ended before this time.", instant),
    Option("afterXid", frozenset({Use.READ}), f"This transaction or a later one, {XID_DOC}.", _xid),
    Option("beforeXid", frozenset({Use.READ}), f"An earlier transaction, {XID_DOC}.", _xid),
    Option(
        "upTo",
        frozenset({Use.READ}),
        "`now`: whatever there is; `watermark`: only what no open transaction can add to, as found when Spark plans.",
        partial(one_of, known=("now", "watermark")),
        "now",
    ),
    Option(
        "startingXid",
        frozenset({Use.STREAM}),
        "Where a stream without a checkpoint begins: `earliest`, `latest`, or a transaction.",
        _starting,
        "earliest",
    ),
    Option(
        "maxRowsPerTrigger",
        frozenset({Use.STREAM}),
        "About how many rows a batch may have; rows of one transaction are never parted.",
        partial(whole, low=1, high=2**31 - 1),
    ),
)
"""Those of reading, and of every use. `sa_jobqueue.spark.writing` has those that only a writer takes."""


class Options(Mapping[str, Any]):
    """The options of one use, by their names, defaults filled in. Neither its repr nor its pickle names a secret."""

    def __init__(self, use: Use, values: Mapping[str, Any], given: frozenset[str] = frozenset()) -> None:
        self.use = use
        self.given = given
        self._values = dict(values)

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        told = (f"{name}={self._values[name]!r}" for name in sorted(self.given))
        return f"<Options of {self.use}: {', '.join(told) or 'none'}>"


def plain(name: str) -> str:
    """Return a name as names are compared: without case and underscores."""
    return name.replace("_", "").lower()


def read_options(given: Mapping[str, str], *, use: Use, known: tuple[Option, ...]) -> Options:
    """Read the options of one use. Raises: InvalidOptionError naming the first that is wrong, and what would be right."""
    of_use = {plain(option.name): option for option in known if use in option.uses}
    values = {option.name: option.default for option in of_use.values()}
    told: dict[str, str] = {}
    for name, value in _with_dataset(given, of_use).items():
        key = plain(name)
        if key in IGNORED:
            continue
        if key not in of_use:
            _refuse_name(name, use, of_use, known)
        if of_use[key].name in told:
            _refuse(of_use[key].name, "is given twice, in two spellings")
        told[of_use[key].name] = value
    # Only when all names are known: what is wrong with a value depends on the use.
    for name, value in told.items():
        values[name] = of_use[plain(name)].read(name, value)
    if "app" in told and told.keys() & {"schema", "prefix"}:
        _refuse("app", "says where the queue is: leave out schema and prefix")
    return Options(use, values, frozenset(told))


def check_options(given: Mapping[str, str], *, known: tuple[Option, ...]) -> None:
    """Check options whose use is not known yet: some use must take all of them. Raises: InvalidOptionError."""
    names = {plain(option.name): option.name for option in known}
    for name in given:
        if plain(name) not in IGNORED | names.keys():
            raise UnknownOptionError(name, f"is no option of format('jobqueue'){_near(name, names)}")
    refused: InvalidOptionError | None = None
    for use in Use:
        try:
            read_options(given, use=use, known=known)
        except UnknownOptionError as error:
            refused = refused or error
        except InvalidOptionError as error:  # of a use that takes them all: this is what is wrong
            raise error from None
        else:
            return
    if refused is not None:
        raise refused


def _with_dataset(given: Mapping[str, str], of_use: Mapping[str, Option]) -> dict[str, str]:
    found = dict(given)
    path = found.get("path")
    if path and "dataset" in of_use:
        if "dataset" in found and found["dataset"] != path:
            _refuse("dataset", f"{found['dataset']!r} is given as an option and {path!r} to load()")
        found["dataset"] = path
    return found


def _refuse_name(name: str, use: Use, of_use: Mapping[str, Option], known: tuple[Option, ...]) -> NoReturn:
    elsewhere = [option for option in known if plain(option.name) == plain(name)]
    if elsewhere:
        uses = " and ".join(sorted({str(one) for option in elsewhere for one in option.uses}))
        raise UnknownOptionError(elsewhere[0].name, f"is no option of {use}; it belongs to {uses}")
    names = {key: option.name for key, option in of_use.items()}
    raise UnknownOptionError(name, f"is no option of {use}{_near(name, names)}")


def _near(name: str, names: Mapping[str, str]) -> str:
    close = get_close_matches(plain(name), names, n=1)
    return f"; did you mean {names[close[0]]}?" if close else f"; known: {', '.join(sorted(names.values()))}"


def _meant(given: str, known: tuple[str, ...]) -> str:
    close = get_close_matches(given.lower(), known, n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _refuse(name: str, reason: str) -> NoReturn:
    raise InvalidOptionError(name, reason)

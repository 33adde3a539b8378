"""The job tables as seen from outside: the datasets that Spark reads, archives hold and analytics are made of.

The schema is published and versioned: within a `SCHEMA_VERSION` columns are only ever added, at the end. Every column
may be null for a reader, whatever the database says.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

SCHEMA_VERSION: Final = 1
"""Raised when a column is removed or changes its meaning; archives carry the version they were written with."""


class Kind(StrEnum):
    """Type of a column. Spark, Arrow and PostgreSQL each have a type for it."""

    TEXT = "text"
    """A string. Ids and states too."""
    JSON = "json"
    """A string of JSON text; the JSON null is the text `null`, and SQL's null is null."""
    INT = "int"
    """A 32-bit integer."""
    LONG = "long"
    """A 64-bit integer."""
    DOUBLE = "double"
    """A double; times that last are in seconds."""
    BOOLEAN = "boolean"
    TIMESTAMP = "timestamp"
    """An instant, in microseconds of UTC. One outside the years 1 to 9999, such as `infinity`, is null for readers; an
    archive leaves its chain in the tables."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a dataset."""

    name: str
    """Its name."""
    kind: Kind
    """Its type."""
    doc: str
    """Its contents."""
    private: bool = False
    """Whether it may contain user data of payloads: left out on request."""


@dataclass(frozen=True, slots=True)
class Dataset:
    """One table as it is read."""

    name: str
    """Its name, such as `jobs`."""
    columns: tuple[Column, ...]
    """Its columns, in order."""
    key: tuple[str, ...]
    """The columns that identify a row; the first of them never changes and splits the table into partitions."""

    @property
    def names(self) -> tuple[str, ...]:
        """The columns' names, in order."""
        return tuple(column.name for column in self.columns)

    def column(self, name: str) -> Column:
        """Return the column called `name`. Raises: KeyError."""
        return {column.name: column for column in self.columns}[name]

    def __reduce__(self) -> tuple[Any, ...]:
        # Unpickled in a Spark task, a dataset must be this very object: datasets are compared by identity.
        return _published, (self.name,)


def _published(name: str) -> Dataset:
    return DATASETS[name]


_XID = Column("xid", Kind.LONG, "The transaction that last changed the row: grows, within one database cluster")

JOBS: Final = Dataset(
    "jobs",
    (
        Column("id", Kind.TEXT, "The job"),
        Column("queue", Kind.TEXT, "Its queue"),
        Column("type_name", Kind.TEXT, "Which handler runs it"),
        Column("priority", Kind.INT, "-9 to 9, larger first"),
        Column("chain_id", Kind.TEXT, "Its chain: the id of the chain's first job"),
        Column("chain_type_name", Kind.TEXT, "The type of the chain's first job"),
        Column("chain_index", Kind.INT, "Its place in the chain, from 0"),
        Column("input", Kind.JSON, "What the handler is given", private=True),
        Column("input_version", Kind.INT, "The version of the input's shape"),
        Column("output", Kind.JSON, "What the handler returned; null before, and where it was none", private=True),
        Column("status", Kind.TEXT, "blocked, pending, running, completed, dead or cancelled"),
        Column("open_blockers", Kind.INT, "How many chains it still waits for"),
        Column("created_at", Kind.TIMESTAMP, "When it was enqueued"),
        Column("scheduled_at", Kind.TIMESTAMP, "When it was due, or is; moved by every retry"),
        Column("started_at", Kind.TIMESTAMP, "When its last attempt was claimed"),
        Column("completed_at", Kind.TIMESTAMP, "When it ended, in whatever way"),
        Column("completed_by", Kind.TEXT, "The worker that completed it"),
        Column("attempt", Kind.INT, "How often it was claimed"),
        Column("max_attempts", Kind.INT, "The attempt that is the last"),
        Column("timeout_seconds", Kind.DOUBLE, "The limit of one attempt"),
        Column("last_error", Kind.JSON, "The last unsuccessful attempt's error: type, message, traceback", private=True),
        Column("leased_by", Kind.TEXT, "The worker that runs it"),
        Column("deduplication_key", Kind.TEXT, "At most one open chain of a type has a given key", private=True),
        Column("chain_completed_at", Kind.TIMESTAMP, "On a chain's first job: when the whole chain ended"),
        Column("chain_status", Kind.TEXT, "On the first job of a chain that ended on a later one: how"),
        Column("trace_context", Kind.TEXT, "The W3C traceparent it was made in"),
        _XID,
        Column("expires_at", Kind.TIMESTAMP, "Not started by then, it is cancelled"),
        Column("ordering_key", Kind.TEXT, "Jobs of one key run one at a time, in order", private=True),
        Column("rate_cost", Kind.INT, "How much an attempt counts against rates; null for 1"),
        Column("deadline", Kind.TIMESTAMP, "Not ended by then, it is cancelled"),
        Column("fairness_key", Kind.TEXT, "Fairness key in its queue, such as a customer's id; empty for none"),
        Column("application", Kind.JSON, "The application's own columns, by name; null without its model", private=True),
    ),
    key=("id",),
)
"""Jobs in every state, those of the archive included."""

ATTEMPTS: Final = Dataset(
    "attempts",
    (
        Column("job_id", Kind.TEXT, "The job"),
        Column("attempt", Kind.INT, "Which attempt, from 1"),
        Column("worker_id", Kind.TEXT, "The worker that had it"),
        Column("started_at", Kind.TIMESTAMP, "When it was claimed"),
        Column("ended_at", Kind.TIMESTAMP, "When its end was written"),
        Column("outcome", Kind.TEXT, "failed, timed_out, lost, snoozed, released or cancelled"),
        Column("error", Kind.JSON, "What was raised: type, message, traceback", private=True),
        Column("error_fingerprint", Kind.TEXT, "The same for errors of one kind raised at one place"),
        _XID,
    ),
    key=("job_id", "attempt"),
)
"""Attempts that did not succeed: a row each, never changed."""

DEAD_LETTERS: Final = Dataset(
    "dead_letters",
    (
        Column("id", Kind.TEXT, "The dead letter: a job may die more than once"),
        Column("job_id", Kind.TEXT, "The job"),
        Column("chain_id", Kind.TEXT, "Its chain"),
        Column("queue", Kind.TEXT, "Its queue when it died"),
        Column("type_name", Kind.TEXT, "Its type"),
        Column("input", Kind.JSON, "Its input", private=True),
        Column("input_version", Kind.INT, "The version of the input's shape"),
        Column("reason", Kind.TEXT, "exhausted, discarded, invalid_input, timed_out, lost or blocker_failed"),
        Column("error", Kind.JSON, "The last error", private=True),
        Column("error_fingerprint", Kind.TEXT, "The same for errors of one kind raised at one place"),
        Column("attempts", Kind.INT, "Which attempt was its last"),
        Column("died_at", Kind.TIMESTAMP, "When"),
        Column("resolution", Kind.TEXT, "redriven or dismissed; null while unresolved"),
        Column("resolved_at", Kind.TIMESTAMP, "When it was resolved"),
        Column("resolved_by", Kind.TEXT, "By whom"),
        _XID,
        Column("fairness_key", Kind.TEXT, "Its fairness key when it died; empty for none"),
    ),
    key=("id",),
)
"""Deaths of jobs, with their resolution."""

BLOCKERS: Final = Dataset(
    "blockers",
    (
        Column("job_id", Kind.TEXT, "The job that waits, or waited"),
        Column("blocked_by_chain_id", Kind.TEXT, "The chain it waits for"),
        Column("index", Kind.INT, "Place among the job's blockers, from 0"),
        Column("is_resolved", Kind.BOOLEAN, "Whether it no longer waits for this chain"),
        Column("on_failure", Kind.TEXT, "What the chain's death means for it: wait, fail or continue"),
    ),
    key=("job_id", "blocked_by_chain_id"),
)
"""Which job waits, or waited, for which chain."""

DATASETS: Final = {dataset.name: dataset for dataset in (JOBS, ATTEMPTS, DEAD_LETTERS, BLOCKERS)}
"""Every dataset by its name, which is also that of its folder in an archive."""

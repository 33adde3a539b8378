"""Names of one queue's database objects, derived from its schema, prefix and id type."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from sqlalchemy.sql.elements import quoted_name

from sa_jobqueue.ddl.v0001 import channel, quoted
from sa_jobqueue.errors import InvalidOptionError

IdType: TypeAlias = Literal["uuid", "text"]
Unit: TypeAlias = Literal["queue", "pipeline"]
Topic: TypeAlias = Literal["due", "lost", "ended", "rules", "unblock", "event"]

# The units of migration, sets of tables that are created together, each with the table whose comment has its version.
STAMPED: Final[dict[Unit, str]] = {"queue": "job", "pipeline": "job_bulk_write"}
PIPELINE_TABLES: Final = ("job_bulk_staging", "job_bulk_write", "job_bulk_reject", "archive_run", "archive_chain")

_NO_TEXT: Final = re.compile("[\0\ud800-\udfff]")
"""What PostgreSQL cannot store in a text."""
_PREFIX: Final = re.compile(r"[a-z_][a-z0-9_]*")
_MAX_BYTES: Final = 63
"""PostgreSQL's limit of identifiers: it cuts longer ones."""
_MAX_PREFIX: Final = 20
"""With it, the longest name of an index stays below PostgreSQL's limit."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Names of one queue's objects.

    `schema`: any identifier of PostgreSQL, at most 63 bytes; None means the connection's search path. `prefix`: lower-case
    identifier of at most 20 bytes before each name, usually ending in an underscore. `id_type`: "uuid" or "text", of a
    job's id. `pipeline`: whether it has the tables of Spark's writes and of the archive.
    Raises: InvalidOptionError for any other value.
    """

    schema: str | None = None
    prefix: str = ""
    id_type: IdType = "uuid"
    pipeline: bool = False

    def __post_init__(self) -> None:
        if self.schema is not None:
            _check_schema(self.schema)
        if self.prefix:
            _check_prefix(self.prefix)
        if self.id_type not in {"uuid", "text"}:
            raise InvalidOptionError("id_type", f"must be 'uuid' or 'text', got {self.id_type!r}")
        if not isinstance(self.pipeline, bool):
            raise InvalidOptionError("queue_pipeline", f"must be True or False, got {self.pipeline!r}")

    def has_table(self, noun: str) -> bool:
        """Return whether a table of the library, named as in `name`, is among the queue's."""
        return self.pipeline or noun not in PIPELINE_TABLES

    @property
    def quoted_schema(self) -> quoted_name | None:
        """The schema for SQLAlchemy, which quotes other names only if they are in its list of reserved words."""
        return None if self.schema is None else quoted_name(self.schema, quote=True)

    def name(self, noun: str) -> str:
        """Return the bare name of an object: `mail_job` for the `noun` "job" with the prefix "mail_"."""
        return f"{self.prefix}{noun}"

    def qualified(self, noun: str) -> str:
        """Return the name of an object as SQL text, with its schema if it has one. `noun`: as in `name`."""
        return f"{quoted(self.schema)}.{self.prefix}{noun}" if self.schema else f"{self.prefix}{noun}"

    def channel(self, topic: Topic) -> str:
        """Return the NOTIFY channel of a `topic`: `due` carries a queue's name, `lost` a job's id, `ended` a chain's.

        `rules` carries nothing: settings of queues, job types or workers have changed. `unblock` carries nothing:
        a job ended without a worker, and other jobs may wait for its chain. `event` is no channel: locks of events have
        names that begin with it.
        """
        return f"{channel(self.schema, self.prefix)}:{topic}"

    def check_translation(self, options: Mapping[str, Any]) -> None:
        """Refuse a `schema_translate_map` that moves the job tables: COPY, triggers and workers cannot follow it.

        `options`: execution options of a connection or an engine.
        """
        translated = options.get("schema_translate_map") or {}
        if translated.get(self.schema, self.schema) != self.schema:
            moved = f"would move the job tables from schema {self.schema!r} to {translated[self.schema]!r}"
            cure = (
                "give the queue a schema that the map leaves alone (queue_schema=...), or give each tenant an engine with a "
                "search_path (connect_args={'options': '-csearch_path=tenant'})"
            )
            raise InvalidOptionError(
                "schema_translate_map", f"{moved}, which COPY, triggers and workers cannot follow: {cure}"
            )


def _check_schema(value: object) -> None:
    """Refuse what PostgreSQL takes as no schema's name, or cuts to its limit. Raises: InvalidOptionError."""
    if not isinstance(value, str) or not value or _NO_TEXT.search(value):
        raise InvalidOptionError("queue_schema", f"must be text, not empty, without NUL and lone surrogates, got {value!r}")
    if (size := len(value.encode())) > _MAX_BYTES:
        raise InvalidOptionError(
            "queue_schema", f"must be at most {_MAX_BYTES} bytes, PostgreSQL's limit, got {size}: {value!r}"
        )
    if value.startswith("pg_"):
        raise InvalidOptionError("queue_schema", f"must not begin with pg_, which PostgreSQL reserves, got {value!r}")


def _check_prefix(value: object) -> None:
    if not isinstance(value, str) or not _PREFIX.fullmatch(value):
        raise InvalidOptionError("queue_prefix", f"must be a lower-case SQL identifier ([a-z_][a-z0-9_]*), got {value!r}")
    if len(value) > _MAX_PREFIX:
        raise InvalidOptionError("queue_prefix", f"must be at most {_MAX_PREFIX} characters, got {len(value)}")

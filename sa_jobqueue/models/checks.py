"""Checks of a queue's class and a job's fields, before anything is mapped or written."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any, Final, get_args, get_origin
from uuid import UUID

from sqlalchemy import Column, func, literal
from sqlalchemy.dialects.postgresql import INTERVAL, TIMESTAMP
from sqlalchemy.orm import MappedAsDataclass, MappedColumn
from sqlalchemy.sql.elements import ColumnElement
from typing_extensions import TypeVar

from sa_jobqueue.errors import InvalidJobError, InvalidOptionError
from sa_jobqueue.errors.bounds import check_duration, check_instant, shown
from sa_jobqueue.layout import Layout
from sa_jobqueue.policies.fairness import byte_length

MIXIN_FIRST: Final = "list JobMixin before the declarative base: class Job(JobMixin, Base)"
_OTHER_BASE: Final = """{reason}: put the queue on a plain base with the same metadata

    class QueueBase(DeclarativeBase):
        metadata = {base}.metadata

    class {job}(JobMixin, QueueBase): ...

Foreign keys and relationships work in both directions (docs/guides/frameworks.md)"""
_VIEWS: Final = ("job_queue", "job_chain", "job_transition")
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/-]{0,99}")
NAME_RULE: Final = "must be 1 to 100 of A-Z a-z 0-9 _ . : / -, and start with one of A-Z a-z 0-9 _"
"""What `is_name` accepts, for errors."""


def due_at(*, delay: timedelta | None, at: datetime | None) -> ColumnElement[datetime] | None:
    """Return when a job is due as an expression of the database's clock, or None for now.

    Raises: InvalidJobError for a negative delay, a naive `at`, both together, or a time too far away.
    """
    if delay is not None and at is not None:
        raise InvalidJobError("delay", "give either delay or at, not both")
    if delay is not None:
        check_duration("delay", delay, or_zero=True, refuse=InvalidJobError)
        return func.now() + literal(delay, INTERVAL) if delay else None
    if at is not None:
        check_instant("at", at, refuse=InvalidJobError)
        return func.greatest(literal(at, TIMESTAMP(timezone=True)), func.now())
    return None


def check_instant_or_expression(field: str, value: object) -> None:
    """Check an instant; an expression is left to the database. Raises: InvalidJobError."""
    if not isinstance(value, ColumnElement):
        check_instant(field, value, refuse=InvalidJobError)


def id_argument(cls: type, mixin: type) -> Any:
    """Return the type given as `JobMixin[...]`, UUID without one. Raises: InvalidOptionError for any other."""
    for klass in cls.__mro__:
        for base in klass.__dict__.get("__orig_bases__", ()):
            if get_origin(base) is mixin:
                (argument,) = get_args(base)
                if argument not in {str, UUID} and not isinstance(argument, TypeVar):
                    raise InvalidOptionError(cls.__name__, f"ids are UUID or str, not {argument!r}: JobMixin[str]")
                return argument
    return UUID


def declarative_base_of(cls: type) -> type:
    """Return the declarative base among a class's bases: the one that has the registry."""
    return next(base for base in cls.__mro__ if "registry" in base.__dict__)


def check_bases(cls: type, mixin: type) -> None:
    """Refuse bases on which a job cannot be mapped, with another way. Raises: InvalidOptionError."""
    if hasattr(cls, "__pydantic_complete__"):
        reason = "a job is not a pydantic model, so it cannot be a SQLModel"
        raise InvalidOptionError(cls.__name__, _OTHER_BASE.format(reason=reason, base="SQLModel", job=cls.__name__))
    if issubclass(cls, MappedAsDataclass):
        base = declarative_base_of(cls).__name__
        reason = "a job has a constructor of its own, so its base must not be a MappedAsDataclass"
        raise InvalidOptionError(cls.__name__, _OTHER_BASE.format(reason=reason, base=base, job=cls.__name__))
    keys = [name for base in cls.__mro__ for name, value in vars(base).items() if _is_key(value) and name != "id"]
    if keys:
        base = declarative_base_of(cls).__name__
        reason = f"the primary key of jobs is the column id, and {keys[0]} is another one"
        raise InvalidOptionError(cls.__name__, _OTHER_BASE.format(reason=reason, base=base, job=cls.__name__))
    if cls.__mro__.index(mixin) > cls.__mro__.index(declarative_base_of(cls)):
        raise InvalidOptionError(cls.__name__, MIXIN_FIRST)


def _is_key(value: object) -> bool:
    column = value.column if isinstance(value, MappedColumn) else value
    return isinstance(column, Column) and column.primary_key


def check_class(cls: Any, keywords: dict[str, Any]) -> None:
    """Refuse, before anything is mapped, what would be mapped as something else. Raises: InvalidOptionError."""
    misspelt = sorted(keyword for keyword in keywords if keyword.startswith("queue"))
    if misspelt:
        class_keywords = "queue_schema, queue_prefix, queue_id_factory or queue_pipeline"
        raise InvalidOptionError(misspelt[0], f"is not a class keyword; use {class_keywords}")
    if "__tablename__" in cls.__dict__:
        raise InvalidOptionError("__tablename__", "is set by the queue; use queue_prefix or queue_schema")


def own_table_args(cls: Any, mixin: type) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the application's `__table_args__`: constraints and indexes, and options.

    Raises: InvalidOptionError for an option that the queue sets.
    """
    owner = next(base for base in cls.__mro__ if "__table_args__" in base.__dict__)
    if owner is mixin:
        return (), {}
    table_args = cls.__table_args__
    parts = (table_args,) if isinstance(table_args, dict) else tuple(table_args)
    options = parts[-1] if parts and isinstance(parts[-1], dict) else {}
    reserved_options = sorted({"schema", "comment", "info", "listeners"} & options.keys())
    if reserved_options:
        advice = "use queue_schema" if "schema" in reserved_options else "remove it"
        raise InvalidOptionError("__table_args__", f"{reserved_options[-1]} is set by the queue; {advice}")
    return tuple(part for part in parts if part is not options), options


def check_tables(cls: Any, layout: Layout, tables: Iterable[str]) -> None:
    """Refuse a queue whose tables have names that are taken in the class's metadata. Raises: InvalidOptionError."""
    # Once the class is mapped, such a name would leave it half made, and `configure_mappers` failing for others.
    names = [f"{layout.schema}.{layout.name(noun)}" if layout.schema else layout.name(noun) for noun in (*tables, *_VIEWS)]
    existing_tables = [name for name in sorted(names) if name in cls.metadata.tables]
    if existing_tables:
        subject = (
            f"table {existing_tables[0]} is" if len(existing_tables) == 1 else f"tables {', '.join(existing_tables)} are"
        )
        raise InvalidOptionError(
            "queue_prefix",
            f"{subject} in this metadata already: give the job tables other names, such as "
            f'class {cls.__name__}(JobMixin, Base, queue_prefix="jobs_"), or a schema with queue_schema',
        )


def check_subclass(cls: type) -> None:
    """Refuse a subclass of a queue's class with a separate table. Raises: InvalidOptionError."""
    if "__tablename__" in cls.__dict__ or "__table__" in cls.__dict__:
        raise InvalidOptionError(
            cls.__name__,
            "has a separate table, and a job is one row: joined-table and concrete inheritance are not supported. Use "
            "single-table inheritance (no __tablename__, nullable columns), or another class with a foreign key to the job",
        )


def is_name(value: object) -> bool:
    """Return whether a queue or job type may have this name."""
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


def check_name(field: str, value: object) -> None:
    """Check the name of a queue or job type. Raises: InvalidJobError."""
    if not is_name(value):
        raise InvalidJobError(field, f"{NAME_RULE}, got {shown(value)}")


LONGEST_TEXT: Final = 500
"""Characters of an id or key that is text."""
MOST_TEXT_BYTES: Final = 2 * LONGEST_TEXT
"""Bytes of one in the database. An entry of an index has at most 2,704 bytes; the longest ones have two such texts."""
TEXT_RULE: Final = (
    f"must be text of 1 to {LONGEST_TEXT} characters and at most {MOST_TEXT_BYTES:,} bytes, without NUL and lone surrogates"
)
"""What `is_text` accepts, for errors."""


def is_text(value: object) -> bool:
    """Return whether an id or key can be this text."""
    return (
        isinstance(value, str)
        and 1 <= len(value) <= LONGEST_TEXT
        and "\x00" not in value
        and 1 <= byte_length(value) <= MOST_TEXT_BYTES
    )


def check_text(field: str, value: object) -> None:
    """Check an id or key that is text. Raises: InvalidJobError."""
    if not is_text(value):
        raise InvalidJobError(field, f"{TEXT_RULE}, got {shown(value)}")


def check_id(model: Any, field: str, value: object) -> None:
    """Check that an id is one as this queue's are. Raises: InvalidJobError naming the field and what would be right."""
    if model.__jobqueue__.id_type == "text":
        check_text(field, value)
    elif not isinstance(value, UUID):
        fix = "; uuid.UUID(...) reads one from text" if isinstance(value, str) else ""
        raise InvalidJobError(field, f"must be a UUID, as the ids of this queue are, got {shown(value)}{fix}")

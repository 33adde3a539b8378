"""`job_relationship`: a relationship from mapped objects to the jobs whose arguments they are."""

from __future__ import annotations

import typing
from collections.abc import Callable
from types import NoneType, UnionType
from typing import Annotated, Any, NotRequired, Required, Union

import sqlalchemy as sa
import typing_extensions
from sqlalchemy.orm import Mapper, Relationship, foreign, relationship, remote
from sqlalchemy.types import TypeDecorator

from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.payloads.references import Ref
from sa_jobqueue.registry.handlers import Handler


def job_relationship(
    handler: Handler[Any, Any, Any] | Callable[[], Handler[Any, Any, Any]], field: str = ""
) -> Relationship[Any]:
    """Return a relationship for reading, from a mapped class to the jobs of a handler that takes its objects.

    It compares the type and the key in the input with the primary key, as text: jobs whose input has another shape, such
    as those of an earlier version, are not found.
    `handler`: a function that returns it if it is declared later; called when SQLAlchemy configures the mappers.
    `field`: of the payload; empty if the object is the payload itself. A list is refused.
    Index: none, unless you create one on the expressions of the condition.
    Raises: InvalidOptionError when the mappers are configured: if the field is not a mapped object, its key is neither an
    integer, text nor a UUID, or the handler has a codec, whose inputs the database cannot read.
    """

    def resolve() -> Handler[Any, Any, Any]:
        resolved = handler if isinstance(handler, Handler) else handler()
        if not isinstance(resolved, Handler):
            raise InvalidOptionError("handler", f"must be a handler or a function that returns one, got {resolved!r}")
        return resolved

    return relationship(lambda: resolve().model, primaryjoin=lambda: _condition(resolve(), field), viewonly=True)


def _condition(handler: Handler[Any, Any, Any], field: str) -> sa.ColumnElement[bool]:
    if handler.job_type.codec is not None:
        raise InvalidOptionError("handler", f"{handler.name!r} has a codec: the database cannot read the keys in its inputs")
    payload_type, stored_name = handler.job_type.input.declared, field
    if field:
        alias = getattr(getattr(payload_type, "__pydantic_fields__", {}).get(field), "serialization_alias", None)
        payload_type, stored_name = _hints(payload_type).get(field), alias or field
    mapper: Mapper[Any] | None = sa.inspect(_mapped_class(payload_type), raiseerr=False)
    if mapper is None:
        place = f"the field {field!r}" if field else "the payload"
        raise InvalidOptionError("field", f"{place} of {handler.name!r} is not one mapped object, but {payload_type!r}")
    job: Any = handler.model
    stored = remote(foreign(job.input))
    if field:
        stored = stored.op("->")(_literal(stored_name))
    conditions = [remote(job.type_name) == _literal(handler.name)]
    for column in mapper.primary_key:
        plain = column.type
        while isinstance(plain, TypeDecorator):
            plain = plain.impl_instance
        is_text = isinstance(plain, sa.String) and not isinstance(plain, sa.Enum)
        # Other types have texts that depend on settings, or differ from those in JSON.
        if not (is_text or isinstance(plain, sa.Integer) or (isinstance(plain, sa.Uuid) and plain.native_uuid)):
            reason = f"{mapper.class_.__name__} has a key of the type {plain!r}, not an integer, text or a UUID"
            raise InvalidOptionError("field", reason)
        name = _literal(mapper.get_property_by_column(column).key)
        conditions.append(stored.op("->>", return_type=sa.Text())(name) == sa.cast(column, sa.Text))
    return sa.and_(*conditions)


def _hints(payload_type: Any) -> dict[str, Any]:
    try:
        return typing_extensions.get_type_hints(payload_type, include_extras=True)
    except Exception:  # not a class, or an annotation of the application raises
        return {}


def _mapped_class(hint: Any) -> Any:
    """Return the class of `Ref[Order]` or `Ref[Order] | None`; None for other annotations."""
    origin, arguments = typing.get_origin(hint), [part for part in typing.get_args(hint) if part is not NoneType]
    if origin is Ref:
        return arguments[0]
    is_one = origin in {Union, UnionType, Required, NotRequired} and len(arguments) == 1
    return _mapped_class(arguments[0]) if is_one or origin is Annotated else None


def _literal(name: str) -> sa.ColumnElement[str]:
    """Return text as a literal: in a generic plan, a parameter would not match the expression of an index."""
    return sa.literal_column("'{}'".format(name.replace("'", "''")), sa.Text())

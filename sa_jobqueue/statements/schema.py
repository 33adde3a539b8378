"""Version information from the database: of the server, and of the queue's tables."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Integer, Select, Text, cast, column, func, literal, literal_column, select, table

from sa_jobqueue.layout import Layout
from sa_jobqueue.models import JobMixin


def versions(model: type[JobMixin[Any]]) -> Select[Any]:
    """Return the server's version number, the database's encoding, whether the job table exists, and its comment.

    Shape: one row `(server, encoding, present, stamp)`; `stamp` is null where there is no comment.
    """
    regclass = func.to_regclass(literal(model.__jobqueue__.qualified("job"), Text))
    return select(
        cast(func.current_setting("server_version_num"), Integer).label("server"),
        func.current_setting("server_encoding").label("encoding"),
        regclass.is_not(None).label("present"),
        func.obj_description(regclass.op("::")(literal_column("oid")), "pg_class").label("stamp"),
    )


def id_type(layout: Layout) -> Select[str]:
    """Return of which type the ids of a queue are, before there is a model for it.

    Shape: one row `(type,)`, `uuid` or `text`; none where there is no job table. Locks: none.
    """
    attribute = table("pg_attribute", column("attrelid"), column("attname"), column("atttypid"), schema="pg_catalog")
    regclass = func.to_regclass(literal(layout.qualified("job"), Text))
    return select(func.format_type(attribute.c.atttypid, None, type_=Text)).where(
        attribute.c.attrelid == regclass, attribute.c.attname == literal("id", Text)
    )

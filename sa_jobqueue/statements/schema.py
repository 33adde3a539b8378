"""Version information from the database: of the server, and of the job tables."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from sa_jobqueue.layout import STAMPED, Layout, Unit


def versions(layout: Layout, unit: Unit) -> sa.Select[Any]:
    """Return the server's version number, the database's encoding, whether a unit's table exists, and its comment.

    Shape: one row `(server, encoding, present, stamp)`; `stamp` is null where there is no comment.
    """
    regclass = sa.func.to_regclass(sa.literal(layout.qualified(STAMPED[unit]), sa.Text))
    return sa.select(
        sa.cast(sa.func.current_setting("server_version_num"), sa.Integer).label("server"),
        sa.func.current_setting("server_encoding").label("encoding"),
        regclass.is_not(None).label("present"),
        sa.func.obj_description(regclass.op("::")(sa.literal_column("oid")), "pg_class").label("stamp"),
    )


def id_type(layout: Layout) -> sa.Select[str]:
    """Return of which type the ids of a queue are, before there is a model for it.

    Shape: one row `(type,)`, `uuid` or `text`; none where there is no job table. Locks: none.
    """
    attribute = sa.table(
        "pg_attribute", sa.column("attrelid"), sa.column("attname"), sa.column("atttypid"), schema="pg_catalog"
    )
    regclass = sa.func.to_regclass(sa.literal(layout.qualified("job"), sa.Text))
    return sa.select(sa.func.format_type(attribute.c.atttypid, None, type_=sa.Text)).where(
        attribute.c.attrelid == regclass, attribute.c.attname == sa.literal("id", sa.Text)
    )

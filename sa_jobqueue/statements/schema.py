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


def unusable_schemas(layout: Layout, unit: Unit) -> sa.Select[Any]:
    """Return the schemas of the search path with a table of the name of a unit's, that the user may not use.

    Shape: one row `(schema, stamp)` each, in their order; `stamp` is null where the table has no comment. Locks: none.
    """
    table = sa.table(
        "pg_class",
        sa.column("oid"),
        sa.column("relname"),
        sa.column("relnamespace"),
        sa.column("relkind"),
        schema="pg_catalog",
    )
    namespace = sa.table("pg_namespace", sa.column("oid"), sa.column("nspname"), schema="pg_catalog")
    # current_schemas() leaves out those that the user may not use.
    search_path = sa.func.replace(sa.func.current_setting("search_path"), '"', "")
    schema_names = sa.func.replace(search_path, "$user", sa.cast(sa.func.current_user(), sa.Text))
    return (
        sa.select(
            sa.cast(namespace.c.nspname, sa.Text).label("schema"),
            sa.func.obj_description(table.c.oid, "pg_class").label("stamp"),
        )
        .select_from(table.join(namespace, namespace.c.oid == table.c.relnamespace))
        .where(
            sa.cast(table.c.relname, sa.Text) == sa.literal(f"{layout.prefix}{STAMPED[unit]}", sa.Text),
            sa.cast(table.c.relkind, sa.Text) == sa.literal("r", sa.Text),
            sa.cast(namespace.c.nspname, sa.Text) == sa.func.regexp_split_to_array(schema_names, ", *").any_(),
            ~sa.func.has_schema_privilege(namespace.c.oid, sa.literal("USAGE", sa.Text)),
        )
        .order_by(namespace.c.nspname)
    )

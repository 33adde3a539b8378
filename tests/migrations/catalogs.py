"""A database's catalog as plain values, so that two ways of making one can be compared object by object."""

from __future__ import annotations

from typing import Final, TypeAlias

from sqlalchemy import Connection, text

Catalog: TypeAlias = dict[str, list[tuple[object, ...]]]

# Everything outside PostgreSQL's own schemas and Alembic's own table.
_QUERIES = {
    "schemas": """
        SELECT nspname FROM pg_namespace WHERE nspname !~ '^pg_' AND nspname <> 'information_schema'""",
    "relations": """
        SELECT c.oid::regclass::text, c.relkind::text, c.relpersistence::text, c.reloptions,
          obj_description(c.oid, 'pg_class')
        FROM pg_class c JOIN mine ON mine.oid = c.relnamespace WHERE c.relname !~ '^alembic_version'""",
    "columns": """
        SELECT a.attrelid::regclass::text, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull,
          a.attgenerated::text, a.attidentity::text, pg_get_expr(d.adbin, d.adrelid), col.collname, a.attstorage::text,
          col_description(a.attrelid, a.attnum),
          row_number() OVER (PARTITION BY a.attrelid ORDER BY a.attnum)
        FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN mine ON mine.oid = c.relnamespace
        LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
        LEFT JOIN pg_collation col ON col.oid = a.attcollation
        WHERE a.attnum > 0 AND NOT a.attisdropped AND c.relkind IN ('r', 'v') AND c.relname <> 'alembic_version'""",
    "constraints": """
        SELECT conrelid::regclass::text, conname, contype::text, pg_get_constraintdef(k.oid), obj_description(k.oid)
        FROM pg_constraint k JOIN mine ON mine.oid = k.connamespace WHERE conrelid::regclass::text <> 'alembic_version'""",
    "indexes": """
        SELECT pg_get_indexdef(i.indexrelid), i.indisvalid FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
        JOIN mine ON mine.oid = c.relnamespace WHERE c.relname !~ '^alembic_version'""",
    "triggers": """
        SELECT pg_get_triggerdef(t.oid), t.tgenabled::text FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
        JOIN mine ON mine.oid = c.relnamespace WHERE NOT t.tgisinternal""",
    "functions": """
        SELECT pg_get_functiondef(p.oid), obj_description(p.oid) FROM pg_proc p JOIN mine ON mine.oid = p.pronamespace""",
    "views": """
        SELECT c.oid::regclass::text, pg_get_viewdef(c.oid) FROM pg_class c JOIN mine ON mine.oid = c.relnamespace
        WHERE c.relkind = 'v'""",
    "enums": """
        SELECT e.enumtypid::regtype::text, e.enumlabel, row_number() OVER (PARTITION BY e.enumtypid ORDER BY e.enumsortorder)
        FROM pg_enum e""",
    "types": """
        SELECT t.oid::regtype::text, t.typtype::text FROM pg_type t JOIN mine ON mine.oid = t.typnamespace
        WHERE t.typname !~ '^_?alembic_version'""",
}
KEPT_VALUE: Final = "paused"
"""The value of `job_status` that the made-up version adds. Its downgrade leaves it, for PostgreSQL removes none."""

_MINE = "WITH mine AS (SELECT oid FROM pg_namespace WHERE nspname !~ '^pg_' AND nspname <> 'information_schema') "


def catalog(connection: Connection) -> Catalog:
    """Read all that the database has, by kind; every list is sorted."""
    objects: Catalog = {}
    for kind, query in _QUERIES.items():
        rows = connection.execute(text((_MINE + query).replace("::", r"\:\:")))
        objects[kind] = sorted((tuple(_plain(value) for value in row) for row in rows), key=repr)
    return objects


def without_kept_value(objects: Catalog) -> Catalog:
    """Return a catalog without the one value that a downgrade may leave."""
    enums = [row for row in objects["enums"] if not (str(row[0]).endswith("job_status") and row[1] == KEPT_VALUE)]
    return {**objects, "enums": enums}


def _plain(value: object) -> object:
    return sorted(value) if isinstance(value, list) else value

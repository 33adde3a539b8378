"""Refuse the names of objects of others before anything of a queue is created."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from sqlalchemy import ARRAY, Connection, Enum, MetaData, Table, TypeDecorator, text

from sa_jobqueue import ddl
from sa_jobqueue.ddl.objects import CREATE, QUALIFIED, CreatedNames
from sa_jobqueue.errors import SchemaBuildError, SchemaError
from sa_jobqueue.layout import STAMPED, Layout

_PLACE: Final = "(SELECT oid FROM pg_namespace WHERE nspname = COALESCE(:schema, current_schema()))"
_TAKEN: Final = text(
    f"""
    SELECT CASE relkind WHEN 'v' THEN 'view' WHEN 'm' THEN 'materialized view' WHEN 'S' THEN 'sequence'
      WHEN 'i' THEN 'index' WHEN 'I' THEN 'index' WHEN 'c' THEN 'type' WHEN 'f' THEN 'foreign table' ELSE 'table' END,
      CAST(relname AS text)
    FROM pg_class WHERE relnamespace = {_PLACE} AND relname = ANY (:relations)
    UNION ALL
    SELECT CASE typtype WHEN 'd' THEN 'domain' ELSE 'type' END, CAST(typname AS text) FROM pg_type
    WHERE typnamespace = {_PLACE} AND typname = ANY (:relations) AND typrelid = 0 AND typcategory <> 'A'
    UNION ALL
    SELECT DISTINCT CASE prokind WHEN 'p' THEN 'procedure' WHEN 'a' THEN 'aggregate' ELSE 'function' END,
      CAST(proname AS text)
    FROM pg_proc WHERE pronamespace = {_PLACE} AND proname = ANY (:functions)
    ORDER BY 2, 1
    """
)
_COLUMNS: Final = text(
    f"""
    SELECT CAST(relname AS text), array_agg(CAST(attname AS text))
    FROM pg_class JOIN pg_attribute ON attrelid = pg_class.oid AND attnum > 0 AND NOT attisdropped
    WHERE relnamespace = {_PLACE} AND relname = ANY (:tables) GROUP BY relname ORDER BY relname
    """
)
_ENUMS: Final = text(
    f"""
    SELECT CAST(typname AS text), array_agg(CAST(enumlabel AS text) ORDER BY enumsortorder), EXISTS (
      SELECT FROM pg_depend WHERE refclassid = CAST('pg_type' AS regclass) AND refobjid = pg_type.oid AND deptype = 'n')
    FROM pg_type JOIN pg_enum ON enumtypid = pg_type.oid
    WHERE typnamespace = {_PLACE} AND typname = ANY (:types) GROUP BY pg_type.oid, typname
    """
)
_COMMENT: Final = text("SELECT obj_description(to_regclass(:name), 'pg_class')")
_CREATE_ENUM: Final = re.compile(rf"{CREATE} TYPE {QUALIFIED} AS ENUM \((.*)\)", re.DOTALL)


def check_names_are_free(
    connection: Connection, layout: Layout, names: CreatedNames, *, enums: Mapping[str, list[str]] = {}
) -> set[str]:
    """Check that no object of the database has a name that a queue's objects are about to get.

    Functions are compared without their arguments: a call of one of ours could mean another of that name. `enums`: the
    labels of enum types that may exist; the names of the existing ones are returned.
    Raises: SchemaError with the advice of a prefix.
    """
    relations = names.relations.union(enums)
    parameters = {"schema": layout.schema, "relations": sorted(relations), "functions": sorted(names.functions)}
    taken = [(kind, name) for kind, name in connection.execute(_TAKEN, parameters)]
    present: set[str] = set()
    if enums and taken:
        types = connection.execute(_ENUMS, {"schema": layout.schema, "types": list(enums)})
        present = {name for name, labels, _ in types if _has(labels, enums[name])}
        taken = [(kind, name) for kind, name in taken if name not in present]
    if taken:
        raise _taken(layout, taken)
    return present


def unused_enums(connection: Connection, layout: Layout, enums: Mapping[str, list[str]]) -> list[str]:
    """Return the names of the enum types in `enums`, a mapping to labels, that exist and are used by nothing."""
    types = connection.execute(_ENUMS, {"schema": layout.schema, "types": list(enums)})
    return [name for name, labels, is_used in types if _has(labels, enums[name]) and not is_used]


def _has(labels: list[str], needed: list[str]) -> bool:
    """Return whether an enum type has the labels of ours. A later version may have added some, which a downgrade leaves."""
    return {*needed} <= {*labels}


def enums_of(statements: Iterable[str]) -> dict[str, list[str]]:
    """Return the labels of the enum types that statements create, by the names of the types without their schema."""
    created = filter(None, map(_CREATE_ENUM.fullmatch, statements))
    return {enum[2]: re.findall(r"'([^']*)'", enum[3]) for enum in created}


def check_enums(metadata: MetaData, layout: Layout, enums: Mapping[str, list[str]]) -> None:
    """Check that no enum type of the application has the name of one of a queue's. `enums`: their labels.

    Raises: SchemaError with the advice of a prefix.
    """
    for table in metadata.tables.values():
        for column in table.columns:
            kind: Any = column.type
            while isinstance(kind, ARRAY | TypeDecorator):
                kind = kind.item_type if isinstance(kind, ARRAY) else kind.impl
            name = str(kind.name) if isinstance(kind, Enum) and kind.schema == layout.schema else ""
            if name in enums and list(kind.enums) != enums[name]:
                raise _taken(layout, [("type", name)], f" of column {table.name}.{column.name}")


def check_tables(connection: Connection, layout: Layout, tables: Iterable[Table]) -> None:
    """Check that relations with the names of a queue's tables are these tables, by their columns.

    Raises: SchemaBuildError if another build of this version made them, SchemaError if they are of others.
    """
    tables_by_name = {table.name: table for table in tables}
    for unit, noun in STAMPED.items():
        if layout.name(noun) in tables_by_name:
            stamp = ddl.read_stamp(connection.scalar(_COMMENT, {"name": layout.qualified(noun)}))
            if stamp is not None and stamp.is_of_another_build(unit):
                raise SchemaBuildError.from_stamps(layout.qualified(noun), stamp, ddl.stamp(unit, stamp.version))
    relations = connection.execute(_COLUMNS, {"schema": layout.schema, "tables": sorted(tables_by_name)})
    needed = {name: {column.name for column in table.columns} for name, table in tables_by_name.items()}
    conflicts = [("table", name) for name, columns in relations if not needed[name] <= {*columns}]
    if conflicts:
        raise _taken(layout, conflicts)


def _taken(layout: Layout, conflicts: Collection[tuple[str, str]], detail: str = "") -> SchemaError:
    objects = [(kind, layout.qualified(name.removeprefix(layout.prefix))) for kind, name in conflicts]
    listed = ", ".join(f"{kind} {name}" for kind, name in objects[:5])
    more = f" and {len(objects) - 5} more" if len(objects) > 5 else ""
    kind, name = objects[0]
    needed_names = "these names" if len(objects) > 1 else "this name"
    return SchemaError(
        f"{listed}{more}{detail}: the job queue's own objects need {needed_names}. Nothing was changed. Give the queue "
        'other names by a prefix, class Job(JobMixin, Base, queue_prefix="jobs_"), or another schema with queue_schema. '
        f"If an earlier create_all left it behind, drop it: DROP {kind.upper()} {name}"
    )

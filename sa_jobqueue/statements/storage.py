"""Sizes of the job tables and indexes, dead rows that vacuum has left, and the server's own settings and counters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, array

from sa_jobqueue.statements._parts import Tables, statement

TABLES: Final = ("job", "job_attempt", "job_blocker", "dead_letter", "worker", "rate_state")
"""The tables that a queue writes to all the time."""


@statement
def tables(t: Tables) -> sa.Select[Any]:
    """Return the statistics of the job tables.

    Shape: a row a table, by name: `(name, bytes, index_bytes, heap_bytes, live, dead, row_bytes, options, inserted,
    updated, deleted, last_vacuum, last_autovacuum, last_autoanalyze, vacuuming)`. Rows are estimates of the
    statistics; `row_bytes` is the mean of a row's columns, null before the first ANALYZE and without the right to read
    the table; `options` are the table's own storage settings; `vacuuming` names the phase of a vacuum that runs.
    Locks: none but ACCESS SHARE while sizes are computed: it waits for a transaction that rewrites a table.
    """
    relation, stats, columns = _relation(), catalog_table("pg_stat_all_tables", *_COUNTERS).alias("stats"), _columns()
    progress = catalog_table("pg_stat_progress_vacuum", "relid", "phase").alias("progress")
    width = sa.select(_width(columns)).where(*_of(columns, stats)).scalar_subquery()
    phase = (
        sa.select(sa.cast(progress.c.phase, sa.Text))
        .where(progress.c.relid == relation.c.oid)
        .limit(sa.literal_column("1"))
        .scalar_subquery()
    )
    return (
        sa.select(
            sa.cast(relation.c.relname, sa.Text).label("name"),
            sa.func.pg_table_size(relation.c.oid, type_=sa.BigInteger).label("bytes"),
            sa.func.pg_indexes_size(relation.c.oid, type_=sa.BigInteger).label("index_bytes"),
            sa.func.pg_relation_size(relation.c.oid, type_=sa.BigInteger).label("heap_bytes"),
            sa.cast(stats.c.n_live_tup, sa.BigInteger).label("live"),
            sa.cast(stats.c.n_dead_tup, sa.BigInteger).label("dead"),
            width.label("row_bytes"),
            sa.cast(relation.c.reloptions, ARRAY(sa.Text)).label("options"),
            sa.cast(stats.c.n_tup_ins, sa.BigInteger).label("inserted"),
            sa.cast(stats.c.n_tup_upd, sa.BigInteger).label("updated"),
            sa.cast(stats.c.n_tup_del, sa.BigInteger).label("deleted"),
            stats.c.last_vacuum,
            stats.c.last_autovacuum,
            stats.c.last_autoanalyze,
            phase.label("vacuuming"),
        )
        .select_from(relation.join(stats, stats.c.relid == relation.c.oid))
        .where(relation.c.oid == sa.any_(regclasses(t)))
        .order_by(relation.c.relname)
    )


@statement
def indexes(t: Tables) -> sa.Select[Any]:
    """Return the catalogs' and statistics' values of the indexes on the job tables.

    Shape: a row per index, by name: `(name, table, kind, bytes, tuples, key_bytes, is_valid, options, scans)`:
    `tuples` as of the last vacuum or analyze, -1 before; `key_bytes` the mean size of an entry's key, null as in
    `tables`; `kind` the access method. Locks: as `tables`.
    """
    relation = _relation()
    entry = catalog_table("pg_index", "indexrelid", "indrelid", "indisvalid", "indkey").alias("entry")
    method = catalog_table("pg_am", "oid", "amname").alias("method")
    stats = catalog_table("pg_stat_all_indexes", "indexrelid", "schemaname", "relname", "idx_scan").alias("stats")
    attribute = catalog_table("pg_attribute", "attrelid", "attnum", "attname").alias("attribute")
    columns = _columns()
    width = (
        sa.select(_width(columns))
        .select_from(attribute.join(columns, columns.c.attname == attribute.c.attname))
        .where(
            attribute.c.attrelid == entry.c.indrelid,
            attribute.c.attnum == sa.any_(sa.cast(entry.c.indkey, ARRAY(sa.Integer))),
            *_of(columns, stats),
        )
        .scalar_subquery()
    )
    return (
        sa.select(
            sa.cast(relation.c.relname, sa.Text).label("name"),
            sa.cast(stats.c.relname, sa.Text).label("table"),
            sa.cast(method.c.amname, sa.Text).label("kind"),
            sa.func.pg_relation_size(relation.c.oid, type_=sa.BigInteger).label("bytes"),
            sa.cast(relation.c.reltuples, sa.Double).label("tuples"),
            width.label("key_bytes"),
            sa.cast(entry.c.indisvalid, sa.Boolean).label("is_valid"),
            sa.cast(relation.c.reloptions, ARRAY(sa.Text)).label("options"),
            sa.cast(stats.c.idx_scan, sa.BigInteger).label("scans"),
        )
        .select_from(
            entry.join(relation, relation.c.oid == entry.c.indexrelid)
            .join(method, method.c.oid == relation.c.relam)
            .join(stats, stats.c.indexrelid == relation.c.oid)
        )
        .where(entry.c.indrelid == sa.any_(regclasses(t)))
        .order_by(relation.c.relname)
    )


@statement
def statuses(t: Tables) -> sa.Select[Any]:
    """Return the estimated number of jobs of each common status.

    Shape: `(status, n)`, of the last ANALYZE; no row before. Locks: none.
    """
    relation, columns = _relation(), _columns()
    stats = catalog_table("pg_stat_all_tables", "relid", "schemaname", "relname").alias("stats")
    values = sa.cast(sa.cast(columns.c.most_common_vals, sa.Text), ARRAY(sa.Text))
    jobs: Any = sa.func.unnest(columns.c.most_common_freqs) * relation.c.reltuples
    job = sa.func.to_regclass(sa.literal(t.layout.qualified("job"), sa.Text))
    return (
        sa.select(sa.func.unnest(values).label("status"), sa.cast(jobs, sa.BigInteger).label("n"))
        .select_from(relation.join(stats, stats.c.relid == relation.c.oid))
        .where(
            relation.c.oid == job.op("::")(sa.literal_column("oid")),
            *_of(columns, stats),
            columns.c.attname == "status",
        )
    )


def server() -> sa.Select[Any]:
    """Return settings and counters of the server, and the rights of the current role.

    Shape: one row `(now, version, is_replica, replayed_for, connections, max_connections, frozen_age, autovacuum,
    vacuum_threshold, vacuum_scale_factor, sees_all, notifying, read_only_by)`; `read_only_by`: where
    `default_transaction_read_only` is on for all; `frozen_age` in transactions, of this database's oldest row
    that is not frozen; `notifying`: how many commits wait for the server's lock of notifications; `sees_all`:
    whether others' sessions are seen whole (pg_read_all_stats, which pg_monitor has).
    Clock: the database's `clock_timestamp()`. Locks: none.
    """
    database = catalog_table("pg_database", "datname", "datfrozenxid").alias("database")
    connections = catalog_table("pg_stat_database", "numbackends").alias("connections")
    frozen = (
        sa.select(sa.func.age(database.c.datfrozenxid, type_=sa.Integer))
        .where(database.c.datname == sa.func.current_database())
        .scalar_subquery()
    )
    locks = catalog_table("pg_locks", "locktype", "database", "classid", "objid", "granted").alias("locks")
    # The object that PreCommit_Notify locks: number 0 of pg_database.
    notifying = sa.select(sa.func.count()).where(
        locks.c.locktype == "object",
        locks.c.database == 0,
        locks.c.classid == sa.literal_column("'pg_database'::regclass"),
        locks.c.objid == 0,
        ~locks.c.granted,
    )
    setting = catalog_table("pg_settings", "name", "setting", "source").alias("setting")
    # Not where only this role or session is meant to be.
    read_only_by = sa.select(setting.c.source).where(
        setting.c.name == "default_transaction_read_only",
        setting.c.setting == "on",
        setting.c.source.not_in(["user", "database user", "client", "session"]),
    )
    used = sa.select(sa.cast(sa.func.sum(connections.c.numbackends), sa.Integer)).select_from(connections).scalar_subquery()
    return sa.select(
        sa.func.clock_timestamp().label("now"),
        sa.cast(sa.func.current_setting("server_version_num"), sa.Integer).label("version"),
        sa.func.pg_is_in_recovery(type_=sa.Boolean).label("is_replica"),
        sa.cast(sa.func.clock_timestamp() - sa.func.pg_last_xact_replay_timestamp(), sa.Interval).label("replayed_for"),
        used.label("connections"),
        sa.cast(sa.func.current_setting("max_connections"), sa.Integer).label("max_connections"),
        frozen.label("frozen_age"),
        sa.cast(sa.func.current_setting("autovacuum"), sa.Boolean).label("autovacuum"),
        sa.cast(sa.func.current_setting("autovacuum_vacuum_threshold"), sa.Integer).label("vacuum_threshold"),
        sa.cast(sa.func.current_setting("autovacuum_vacuum_scale_factor"), sa.Double).label("vacuum_scale_factor"),
        sa.func.pg_has_role("pg_read_all_stats", "usage", type_=sa.Boolean).label("sees_all"),
        notifying.scalar_subquery().label("notifying"),
        read_only_by.scalar_subquery().label("read_only_by"),
    )


_COUNTERS: Final = (
    *("relid", "schemaname", "relname"),
    *("n_live_tup", "n_dead_tup", "n_tup_ins", "n_tup_upd", "n_tup_del"),
    *("last_vacuum", "last_autovacuum", "last_autoanalyze"),
)


def regclasses(t: Tables, nouns: Sequence[str] = TABLES) -> sa.ColumnElement[Any]:
    """Return the oids of tables, by name, on the search path or in the queue's schema; null for one that does not exist."""
    oids = [
        sa.func.to_regclass(sa.literal(t.layout.qualified(noun), sa.Text)).op("::")(sa.literal_column("oid"))
        for noun in nouns
    ]
    return array(oids)


def _columns() -> Any:
    """Return the statistics of columns, those of partitions and children not included."""
    names = ("schemaname", "tablename", "attname", "avg_width", "null_frac", "most_common_vals", "most_common_freqs")
    return catalog_table("pg_stats", *names, "inherited").alias("columns")


def _of(columns: Any, stats: Any) -> list[sa.ColumnElement[bool]]:
    """Return the conditions on statistics of columns to be of the table that other statistics are of."""
    is_of_table = columns.c.schemaname == stats.c.schemaname, columns.c.tablename == stats.c.relname
    return [*is_of_table, ~sa.cast(columns.c.inherited, sa.Boolean)]


def _width(columns: Any) -> sa.ColumnElement[Any]:
    present = sa.literal_column("1") - columns.c.null_frac
    return sa.cast(sa.func.sum(columns.c.avg_width * present), sa.Double)


def _relation() -> Any:
    return catalog_table("pg_class", "oid", "relname", "relam", "reltuples", "reloptions").alias("relation")


def catalog_table(name: str, *columns: str) -> Any:
    """Return a table or view of PostgreSQL's catalog with some of its columns."""
    return sa.table(name, *(sa.column(each) for each in columns), schema="pg_catalog")

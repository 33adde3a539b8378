"""Frozen DDL, one module a version. Add modules; never edit one that was released."""

from sa_jobqueue.ddl import v0001

ALL = (v0001,)
"""Every version in order; the last is the one this library needs."""

LATEST = ALL[-1].VERSION
"""The version this library needs."""

RETIRED: frozenset[str] = frozenset()
"""Names, without prefix, of tables, columns, indexes and constraints that an older version had and the latest has not:
autogenerate must not take them for the application's."""

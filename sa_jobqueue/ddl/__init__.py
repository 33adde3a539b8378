"""Frozen DDL, one module a version. Add modules; never edit one that was released."""

from typing import Any

from sa_jobqueue.ddl import pipeline_v0001, v0001

UNITS: dict[str, tuple[Any, ...]] = {"queue": (v0001,), "pipeline": (pipeline_v0001,)}
"""Every version of each unit in order. Units have the same versions; the last is the one this library needs."""

LATEST = v0001.VERSION
"""The version this library needs."""

RETIRED: frozenset[str] = frozenset()
"""Names, without prefix, of tables, columns, indexes and constraints that an older version had and the latest has not:
autogenerate must not take them for the application's."""

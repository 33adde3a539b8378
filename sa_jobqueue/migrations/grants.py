"""GRANTs for the four roles of a queue, none of which may alter a table."""

from __future__ import annotations

import re
from typing import Final

from sqlalchemy import Connection

from sa_jobqueue.ddl.v0001 import quoted
from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.layout import PIPELINE_TABLES, Layout
from sa_jobqueue.migrations.runner import existing
from sa_jobqueue.models import Job
from sa_jobqueue.models.base import verbatim

ROLES: Final = "jobqueue"
"""Default prefix of the names of the roles."""

_READ, _WRITE, _ALL = "SELECT, INSERT", "SELECT, INSERT, UPDATE", "SELECT, INSERT, UPDATE, DELETE"
# Making a job wait for a chain marks that chain and locks its row: this needs the right to update some column.
_ENQUEUE: Final = {
    "job": f"{_READ}, UPDATE (has_waiters)",
    "job_blocker": _READ,
    # That a blocker waits for its event; not the results of steps.
    "job_step": "INSERT (job_id, name, kind, attempt, event, started_at)",
    "job_queue": _READ,
    "job_transition": "SELECT",
    # What is recorded for a type applies to jobs that are written without it.
    "job_type": "SELECT",
}
_BULK: Final = {"job_bulk_staging": "SELECT, INSERT, DELETE", "job_bulk_write": _WRITE, "job_bulk_reject": _READ}
_RULES: Final = ("queue", "job_type", "schedule")
_TABLES: Final = tuple(dict.fromkeys((*Job.metadata.tables, *PIPELINE_TABLES)))
_VIEWS: Final = ("job_queue", "job_chain", "job_transition")

RIGHTS: Final = {
    "producer": _ENQUEUE | _BULK,
    # It prunes what is past its retention.
    "worker": {
        "job": _ALL,
        "job_blocker": _ALL,
        "job_attempt": f"{_READ}, DELETE",
        "job_step": _ALL,
        "job_event": _ALL,
        "job_minute": "SELECT, INSERT, DELETE",
        "dead_letter": _ALL,
        "worker": _ALL,
        **dict.fromkeys(_RULES, _WRITE),
        "rate_state": "SELECT, INSERT, DELETE",
        "quarantine": _ALL,
        "job_audit": f"{_READ}, DELETE",
        # It leaves the chains that a run of the archive has.
        "archive_chain": "SELECT",
        "job_queue": _READ,
        "job_chain": "SELECT",
        "job_transition": "SELECT",
    },
    "observer": dict.fromkeys((*_TABLES, *_VIEWS), "SELECT"),
    "operator": dict.fromkeys(_TABLES, _ALL)
    # What was recorded stays as it is: the worker deletes it when its time is up.
    | {"job_audit": _READ, "job_queue": _WRITE, "job_chain": "SELECT", "job_transition": "SELECT"},
}
"""Privileges of each role by table or view, named without the queue's prefix. Everything else is not allowed."""


def rights_of(layout: Layout, role: str) -> dict[str, str]:
    """Return the privileges of a role on the tables and views that a queue has."""
    return {noun: rights for noun, rights in RIGHTS[role].items() if layout.has_table(noun)}


_NAME: Final = re.compile(r"(?!pg_)[a-z_][a-z0-9_]{0,49}")


def role_names(roles: str = ROLES) -> dict[str, str]:
    """Return the names of the roles: `jobqueue_producer` for `producer`.

    Raises: InvalidOptionError when `roles` is no lower-case identifier of at most 50 characters, or begins with `pg_`.
    """
    if not _NAME.fullmatch(roles):
        raise InvalidOptionError(
            "roles", f"must be a lower-case SQL identifier of at most 50 characters, not starting with pg_, got {roles!r}"
        )
    return {role: f"{roles}_{role}" for role in RIGHTS}


def grant_statements(layout: Layout, *, roles: str = ROLES) -> list[str]:
    """Return the SQL that makes the roles where they are missing, and gives each exactly its rights on one queue.

    Shape: statements in order, without semicolons at their ends; the same at every call. They take away first whatever the
    roles had on the job tables, so run them in one transaction: then no role is without its rights at any time.
    Raises: InvalidOptionError as `role_names`.
    """
    names = role_names(roles)
    everybody = ", ".join(f'"{name}"' for name in names.values())
    relations = ", ".join(layout.qualified(noun) for noun in rights_of(layout, "observer"))
    return [
        *(_CREATE.format(role=name) for name in names.values()),
        # A queue without a schema lies where the search path leads; which schema that is, the database knows.
        f"GRANT USAGE ON SCHEMA {quoted(layout.schema)} TO {everybody}"
        if layout.schema
        else _USAGE.format(job=layout.qualified("job"), roles=everybody),
        f"REVOKE ALL ON {relations} FROM {everybody}",
        *(
            f'GRANT {rights} ON {layout.qualified(noun)} TO "{names[role]}"'
            for role in RIGHTS
            for noun, rights in rights_of(layout, role).items()
        ),
        # The view makes ids for those who insert through it, and a client that makes a job due notifies. Triggers need none.
        *(
            f"GRANT EXECUTE ON FUNCTION {layout.qualified(noun)}({arguments}) TO {everybody}"
            for noun, arguments in (("job_uuid7", ""), ("job_notify_due", "text"), ("job_idle_lock", "text"))
        ),
    ]


def apply_grants(connection: Connection, layout: Layout, *, roles: str = ROLES) -> None:
    """Make the roles where they are missing, and give each exactly its rights on the tables that one queue has.

    Changes: roles of the server, rights on the job tables. Locks: rows of the catalogs, until the transaction ends.
    Obliges: commit; own the tables, and where a role is missing be allowed to create roles.
    Raises: InvalidOptionError as `role_names`.
    """
    for statement in grant_statements(existing(connection, layout), roles=roles):
        connection.execute(verbatim(statement))


_CREATE: Final = """\
DO $$ BEGIN
  IF to_regrole('{role}') IS NULL THEN
    CREATE ROLE "{role}" NOLOGIN;
  END IF;
END $$"""

_USAGE: Final = """\
DO $$ BEGIN
  EXECUTE format('GRANT USAGE ON SCHEMA %I TO {roles}',
    (SELECT nspname FROM pg_namespace n JOIN pg_class c ON c.relnamespace = n.oid WHERE c.oid = '{job}'::regclass));
END $$"""

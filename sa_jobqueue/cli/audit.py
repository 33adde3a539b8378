"""`sa-jobqueue audit`: what operators changed, and who did it."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any, Final

import click

from sa_jobqueue.cli import _options as opts
from sa_jobqueue.cli import noun_group
from sa_jobqueue.cli._output import Columns
from sa_jobqueue.cli._rows import page_options, print_page
from sa_jobqueue.cli.prune import print_pruned
from sa_jobqueue.operations import AuditFilter, list_audit
from sa_jobqueue.operations.audit import by_command
from sa_jobqueue.policies.retention import Retention, RetentionRules

_COLUMNS: Final[Columns] = {
    "at": "done_at",
    "by": "done_by",
    "operation": "operation",
    "changed": "changed",
    "matched": "matched",
    "rows": lambda record: _rows(record.ids),
    "arguments": lambda record: _short(json.dumps(record.arguments)),
    "id": "id",
}
_FEW: Final = 3
"""Number of ids of a record in the table; --json has them all."""
_LONGEST: Final = 80


def _rows(ids: list[Any]) -> str:
    return ", ".join(map(str, ids[:_FEW])) + (", ..." if len(ids) > _FEW else "")


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


audit: Final = noun_group("audit")


@audit.command("list")
@opts.only("--operation", "operations", "NAME", "this operation, such as cancel_jobs")
@opts.only("--by", "done_by", "NAME", "changes by this name")
@opts.instant_option("--since", "done_after", "Only at or after this time")
@opts.instant_option("--before", "done_before", "Only before this time")
@page_options
@opts.reading
def list_(database: opts.Database, /, **options: Any) -> None:
    """List the changes that were made with a name (`--by`), newest first.

    A command has one row, and one record for each of its transactions; --json has the records.
    """
    names: dict[str, Any] = {"noun": "record", "key": "audit", "columns": _COLUMNS, "read_id": click.UUID}
    print_page(database, list_audit, AuditFilter, rows=by_command, **names, **options)


@audit.command()
@opts.duration_option("--older-than", "Only records older than this, such as 90d.", required=True)
@opts.changing
def prune(database: opts.Database, /, *, older_than: timedelta, dry_run: bool, by: str) -> None:
    """Delete audit records older than a given age. Workers also do this, if their JobQueue sets a retention."""
    rules = RetentionRules(default=Retention(audit=older_than))
    print_pruned(database, rules, "audit", "record", dry_run=dry_run, by=by)

"""`sa-jobqueue prune`: delete chains that ended before a given age."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

import click

from sa_jobqueue.cli import _options as opts
from sa_jobqueue.cli._output import counted, print_result, table_of
from sa_jobqueue.db.splitting import summary
from sa_jobqueue.display.progress import ProgressLines
from sa_jobqueue.models import Job
from sa_jobqueue.operations import PruneCursor, Pruned
from sa_jobqueue.operations import prune as prune_page
from sa_jobqueue.policies.retention import OUTCOMES, Retention, RetentionRules
from sa_jobqueue.statements import retention
from sa_jobqueue.types import JobId, JobStatus

_LOCK_TIMEOUT_SECONDS: Final = 2
"""Seconds to wait for a lock on an application's row that refers to a job."""
_COUNTS: Final = ("jobs", "dead_letters", "audit", "kept", "scanned")


@click.command()
@opts.url_option
@opts.application_option("The application's JobQueue: its tables and, without --older-than, its retention.")
@opts.duration_option("--older-than", "Delete chains that ended longer ago than this, such as 30d or 12h.")
@opts.only(
    "--status", "statuses", None, "chains with this status (default: completed, cancelled)", type=opts.one_of(OUTCOMES)
)
@opts.only("--type", "types", "TYPE", "chains whose first job has this type")
@opts.dry_run_option
@opts.by_option
@opts.json_option
def prune(
    *, url: str | None, app: str | None, older_than: timedelta | None, statuses: tuple[str, ...], types: tuple[str, ...],
    dry_run: bool, by: str,
) -> None:  # fmt: skip
    """Delete chains that ended before a given age, one page per transaction. Locked chains are skipped.

    A chain is kept while a job of a chain that is kept waits or waited for it. Dead chains are deleted only with --status
    dead. Without --older-than, --app is required: the retention of the JobQueue and of the queues' settings applies, as in
    workers, and resolved dead letters and audit records are deleted as well (see `dead-letters prune`).

    \b
    Example:
      sa-jobqueue prune --older-than 30d --dry-run
    """
    jobs = opts.load_jobs(app) if app is not None else None
    if older_than is None:
        if jobs is None or statuses or types:
            raise click.UsageError("pass --older-than, such as 30d; or only --app, to use the retention of its JobQueue")
        rules = jobs.retention_rules
    else:
        rules = _rules(older_than, statuses, types)
    database = opts.Database(opts.parse_url(url), jobs.model if jobs is not None else Job)
    totals = prune_all(database, rules, queue_rows=older_than is None, dry_run=dry_run, by=by)
    kinds = [(name, outcome, count) for (name, outcome), count in sorted(totals.chains.items())]
    by_kind = [dict(zip(("type_name", "status", "chains"), kind, strict=True)) for kind in kinds]
    rows = totals.rows
    title = f"{counted(rows['chains'], 'chain')} of {counted(rows['jobs'], 'job')} "
    title += "would be deleted" if dry_run else "deleted"
    if rows["dead_letters"]:
        title += f", and {counted(rows['dead_letters'], 'dead letter')}"
    if rows["kept"]:
        title += f"; {counted(rows['kept'], 'chain')} kept for now: referred to by other rows, in an archive run, or locked"
    document = {"dry_run": dry_run} | rows | {"by": by_kind, "kept_by": totals.kept_by()}
    print_result(document, table_of(title, ["type", "status", "chains"], kinds), *totals.kept_lines())


@dataclass
class Totals:
    """What all pages of a prune have deleted and kept."""

    chains: Counter[tuple[str, JobStatus]] = field(default_factory=Counter)
    """Deleted chains by type and status."""
    rows: Counter[str] = field(default_factory=Counter)
    """Rows, by the fields of `Pruned`, and `chains`."""
    errors: dict[JobId, str] = field(default_factory=dict)
    """Rows that could not be deleted, each with the error."""

    def add(self, page: Pruned) -> None:
        """Add the result of one page."""
        self.chains.update(page.chains)
        self.rows.update(chains=sum(page.chains.values()), **{name: getattr(page, name) for name in _COUNTS})
        for row_id, error in (*page.referenced.items(), *page.refused.items()):
            self.errors[row_id] = summary(error)

    def kept_by(self) -> list[dict[str, Any]]:
        """Return the errors, the most frequent first, each with the number of rows and one of them."""
        rows_by_error: dict[str, list[JobId]] = {}
        for row_id, error in self.errors.items():
            rows_by_error.setdefault(error, []).append(row_id)
        return [
            {"error": error, "rows": len(row_ids), "id": row_ids[0]}
            for error, row_ids in sorted(rows_by_error.items(), key=lambda item: (-len(item[1]), item[0]))
        ]

    def kept_lines(self) -> list[str]:
        """Return the same as text."""
        return [
            f"{counted(retained['rows'], 'row')} kept, such as {retained['id']}: {retained['error']}"
            for retained in self.kept_by()
        ]


def prune_all(database: opts.Database, rules: RetentionRules, *, queue_rows: bool = False, dry_run: bool, by: str) -> Totals:
    """Delete rows past their retention, one page per transaction."""
    totals = Totals()
    options: dict[str, Any] = {"queue_rows": queue_rows, "dry_run": dry_run, "by": by, "model": database.model}
    with database.session() as session, ProgressLines("prune") as lines:
        cursor: PruneCursor | None = PruneCursor()
        while cursor is not None:
            with session.begin():
                session.execute(retention.bounded(), {"seconds": _LOCK_TIMEOUT_SECONDS})
                page = prune_page(session, rules, cursor=cursor, **options)
            totals.add(page)
            cursor = page.next
            lines.update(totals.rows["jobs"], step="jobs deleted")
    return totals


def print_pruned(database: opts.Database, rules: RetentionRules, kind: str, noun: str, *, dry_run: bool, by: str) -> None:
    """Delete rows of one kind past their retention, and print how many they were."""
    totals = prune_all(database, rules, dry_run=dry_run, by=by)
    deleted = totals.rows[kind]
    text = f"{counted(deleted, noun)} {'would be deleted' if dry_run else 'deleted'}"
    document = {"dry_run": dry_run, kind: deleted} | ({"kept_by": totals.kept_by()} if totals.errors else {})
    print_result(document, text, *totals.kept_lines())


def _rules(older_than: timedelta, statuses: tuple[str, ...], types: tuple[str, ...]) -> RetentionRules:
    retained = Retention(**dict.fromkeys(statuses or ("completed", "cancelled"), older_than))
    return RetentionRules(types=dict.fromkeys(types, retained)) if types else RetentionRules(default=retained)

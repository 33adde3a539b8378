"""`sa-jobqueue prune`: delete chains that ended before a given age."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any, Final

import click

from sa_jobqueue.cli import _options as opts
from sa_jobqueue.cli._output import counted, print_result, table_of
from sa_jobqueue.display.progress import ProgressLines
from sa_jobqueue.models import Job
from sa_jobqueue.operations import PruneCursor
from sa_jobqueue.operations import prune as prune_page
from sa_jobqueue.policies.retention import OUTCOMES, Retention, RetentionRules
from sa_jobqueue.statements import retention
from sa_jobqueue.types import JobStatus

_PATIENCE: Final = 2
"""Seconds to wait for a lock on an application's row that refers to a job."""


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
    chains, totals = prune_all(database, rules, queue_rows=older_than is None, dry_run=dry_run, by=by)
    kinds = [(name, outcome, count) for (name, outcome), count in sorted(chains.items())]
    by_kind = [dict(zip(("type_name", "status", "chains"), kind, strict=True)) for kind in kinds]
    title = f"{counted(totals['chains'], 'chain')} of {counted(totals['jobs'], 'job')} "
    title += "would be deleted" if dry_run else "deleted"
    if totals["dead_letters"]:
        title += f", and {counted(totals['dead_letters'], 'dead letter')}"
    if totals["kept"]:
        title += f"; {counted(totals['kept'], 'chain')} kept for now: other chains refer to them, or their rows are locked"
    print_result({"dry_run": dry_run} | totals | {"by": by_kind}, table_of(title, ["type", "status", "chains"], kinds))


def prune_all(
    database: opts.Database, rules: RetentionRules, *, queue_rows: bool = False, dry_run: bool, by: str
) -> tuple[Counter[tuple[str, JobStatus]], Counter[str]]:
    """Delete rows past their retention, one page per transaction; return the chains by type and status, and the totals."""
    chains, totals = Counter[tuple[str, JobStatus]](), Counter[str]()
    options: dict[str, Any] = {"queue_rows": queue_rows, "dry_run": dry_run, "by": by, "model": database.model}
    with database.session() as session, ProgressLines("prune") as lines:
        cursor: PruneCursor | None = PruneCursor()
        while cursor is not None:
            with session.begin():
                session.execute(retention.bounded(), {"seconds": _PATIENCE})
                page = prune_page(session, rules, cursor=cursor, **options)
            chains.update(page.chains)
            totals.update(jobs=page.jobs, kept=page.kept, scanned=page.scanned)
            totals.update(dead_letters=page.dead_letters, audit=page.audit)
            cursor = page.next
            lines.update(totals["jobs"], step="jobs deleted")
    totals["chains"] = chains.total()
    return chains, totals


def print_pruned(database: opts.Database, rules: RetentionRules, kind: str, noun: str, *, dry_run: bool, by: str) -> None:
    """Delete rows of one kind past their retention, and print how many they were."""
    deleted = prune_all(database, rules, dry_run=dry_run, by=by)[1][kind]
    text = f"{counted(deleted, noun)} {'would be deleted' if dry_run else 'deleted'}"
    print_result({"dry_run": dry_run, kind: deleted}, text)


def _rules(older_than: timedelta, statuses: tuple[str, ...], types: tuple[str, ...]) -> RetentionRules:
    retained = Retention(**dict.fromkeys(statuses or ("completed", "cancelled"), older_than))
    return RetentionRules(types=dict.fromkeys(types, retained)) if types else RetentionRules(default=retained)

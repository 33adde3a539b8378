"""`sa-jobqueue queues`: list, pause and resume queues, change and synchronize their settings."""

from __future__ import annotations

from dataclasses import asdict
from datetime import timedelta
from typing import Any, Final

import click
from sqlalchemy.orm import Session

from sa_jobqueue import operations
from sa_jobqueue.cli import _options as opts
from sa_jobqueue.cli import noun_group
from sa_jobqueue.cli._output import print_result, table_of
from sa_jobqueue.cli._rows import NamedRows, rate_text
from sa_jobqueue.display.printable import span
from sa_jobqueue.observe.shares import Share, shares
from sa_jobqueue.operations.queues import SyncedQueues
from sa_jobqueue.registry.job_queue import JobQueue
from sa_jobqueue.registry.settings import QueueColumns

queues: Final = noun_group("queues")
_fairness_key = click.option(
    "--fairness-key", default="", metavar="KEY", help="Only this fairness key of the queue.  [default: the queue]"
)
_rows: Final = NamedRows(queues, "queue", options=(_fairness_key,))
_rows.add_list(
    "queues",
    operations.list_queues,
    {
        "queue": "name",
        "fairness key": lambda status: status.fairness_key or None,
        "paused": "paused_at",
        "by": "paused_by",
        "workers": "workers",
        "concurrency": "global_concurrency",
        "rate": rate_text,
        "per key": "concurrency_per_key",
        "weight": "weight",
    },
    "List queues that have settings or an active worker.",
)
_rows.add_show(operations.get_queue, "Show the settings of one queue.")
_rows.add_set(
    QueueColumns,
    operations.get_queue,
    operations.upsert_queue,
    """Change the settings of a queue. Options that are not given keep their value.

    \b
    Example:
      sa-jobqueue queues set mail --global-concurrency 10 --rate-limit 100 --rate-period 1m
    """,
)
_rows.add_change(
    "pause", operations.pause_queues, "Pause queues: start none of their jobs until they are resumed. Running jobs continue."
)
_rows.add_change("resume", operations.resume_queues, "Resume paused queues.")


@queues.command("shares")
@opts.duration_option("--window", "Period whose started jobs are counted.", type=opts.period, default=timedelta(minutes=1))
@opts.reading
def shares_(database: opts.Database, /, *, window: timedelta) -> None:
    """Compare the share of started jobs of each queue and fairness key with its weight, most underserved first."""
    report = database.run(shares, window=window)
    document: dict[str, Any] = {"window": report.window, "is_partial": report.is_partial}
    for kind, share_list in (("queues", report.queues), ("keys", report.keys)):
        document[kind] = [asdict(share) | {"is_starving": share.is_starving} for share in share_list]
    headings = ("queue", "fairness key", "weight", "started", "received", "due share", "oldest due for", "state")
    rows = [_share(share, "all") for share in report.queues] + [_share(share, "none") for share in report.keys]
    title = f"jobs started within {span(window)}{', at least' if report.is_partial else ''}"
    print_result(document, table_of(title, headings, rows))


def _share(share: Share, without_key: str) -> tuple[Any, ...]:
    due_share = None if share.due_share is None else f"{share.due_share:.0%}"
    state = "less than half" if share.is_starving else None
    key = share.fairness_key or without_key
    return (share.queue, key, share.weight, share.started, f"{share.received:.0%}", due_share, share.waiting_for, state)


def _sync(session: Session, jobs: JobQueue[Any], by: str) -> SyncedQueues:
    operations.record_job_types(session, jobs.registry, model=jobs.model)
    return operations.sync_queues(session, jobs.declared_queues, by=by, model=jobs.model)


_rows.add_sync(
    _sync,
    """Synchronize the settings of queues with the application's JobQueue. Pauses are kept; nothing is deleted.

    Records the queue, priority, attempts and timeout that handlers declare, too, as a worker does at start.
    """,
)

"""`sa-jobqueue workers`: list workers, drain them, and change their concurrency."""

from __future__ import annotations

import time
from dataclasses import asdict
from datetime import timedelta
from typing import Any, Final

import click
from sqlalchemy.orm import Session

from sa_jobqueue.cli import _options as opts
from sa_jobqueue.cli import noun_group
from sa_jobqueue.cli._output import counted, echo, print_result, table_of
from sa_jobqueue.display.printable import span
from sa_jobqueue.operations import WorkerFilter, WorkerStatus, drain_workers, list_workers, resize_workers

DEAD_AFTER: Final = timedelta(minutes=1)
"""A worker without a heartbeat for this long counts as stopped: it was killed, and its row is removed later."""
_POLL_SECONDS: Final = 0.25

_name_option: Final = opts.only("--name", "names", "NAME", "workers of this name; * matches any characters")
_queue_option: Final = opts.only("--queue", "queues", "QUEUE", "workers that serve this queue")
_COLUMNS: Final[dict[str, Any]] = {
    "id": "id",
    "state": "state",
    "heartbeat": lambda worker: f"{span(worker.silent_for)} ago",
    "running": lambda worker: (
        f"{worker.used}/{worker.concurrency}" + (f" ({worker.stuck_threads} stuck)" if worker.stuck_threads else "")
    ),
    "queues": lambda worker: ", ".join(worker.queues),
    "name": "name",
    "host": "host",
    "pid": "pid",
    "drain requested": "drain_requested_at",
}

workers: Final = noun_group("workers")


@workers.command("list")
@_name_option
@_queue_option
@opts.heartbeat_timeout_option
@opts.reading
def list_(database: opts.Database, /, *, heartbeat_timeout: timedelta, **filters: tuple[str, ...]) -> None:
    """List workers with their last reported state, silent ones first: dead or frozen, their heartbeat is overdue."""
    with database.session() as session:
        statuses = database.every(session, list_workers, where=WorkerFilter(**filters))

    def state(worker: WorkerStatus) -> str:
        if worker.silent_for > heartbeat_timeout:
            return "silent"
        return f"failing ({worker.failure})" if worker.failure else worker.state

    worst_first = sorted(
        statuses, key=lambda worker: (-max(worker.silent_for, heartbeat_timeout), -worker.stuck_threads, worker.id)
    )
    table = table_of(counted(len(statuses), "worker"), _COLUMNS | {"state": state}, worst_first)
    print_result({"workers": [asdict(worker) for worker in statuses]}, table)


@workers.command()
@click.argument("ids", metavar="[ID]...", nargs=-1)
@_name_option
@_queue_option
@click.option("--all", "everybody", is_flag=True, help="Select every worker.")
@opts.duration_option(
    "--wait", "Wait at most this long, such as 2m, until they have stopped; exit with status 1 if they have not."
)
@opts.changing
def drain(
    database: opts.Database, /, *, everybody: bool, wait: timedelta | None, dry_run: bool, by: str,
    **filters: tuple[str, ...],
) -> None:  # fmt: skip
    """Drain workers: they stop claiming, finish running jobs and exit. A service manager may restart them.

    \b
    Example:
      sa-jobqueue workers drain --name 'web-*' --wait 2m
    """
    if any(filters.values()) == everybody:
        raise click.UsageError("pass IDs, --name or --queue, or only --all")
    where = WorkerFilter(**filters)
    with database.session() as session:
        drained_ids = drain_workers(session, where=where, by=by, dry_run=dry_run, model=database.model).ids
        session.commit()
        unstopped_ids = (
            _wait(session, database, drained_ids, wait) if wait is not None and drained_ids and not dry_run else None
        )
    document = {"would_drain" if dry_run else "asked_to_drain": drained_ids} | (
        {} if unstopped_ids is None else {"still_there": unstopped_ids}
    )
    text = f"{counted(len(drained_ids), 'worker')} {'would be ' if dry_run else ''}asked to drain"
    print_result(document, text)
    unknown = [
        f"worker {worker_id!r} not found; see sa-jobqueue workers list"
        for worker_id in filters["ids"]
        if worker_id not in drained_ids
    ]
    for line in (complaints := [*(f"worker {worker_id} has not stopped" for worker_id in unstopped_ids or ()), *unknown]):
        echo(line, err=True)
    if complaints:
        raise click.exceptions.Exit(1)


@workers.command()
@click.argument("worker_id", metavar="ID")
@click.argument("concurrency", metavar="[N]", type=int, required=False)
@opts.by_option
@opts.reading
def concurrency(database: opts.Database, /, *, worker_id: str, concurrency: int | None, by: str) -> None:
    """Set the concurrency of a worker to N until it restarts; without N, reset it to the value it was started with."""
    result = database.run(resize_workers, concurrency, where=WorkerFilter(ids=[worker_id]), by=by)
    if not result.changed:
        raise click.ClickException(f"worker {worker_id!r} not found; see sa-jobqueue workers list")
    text = f"requested concurrency of worker {worker_id}: {'its initial value' if concurrency is None else concurrency}"
    print_result({"worker": worker_id, "concurrency_requested": concurrency}, text)


def _wait(session: Session, database: opts.Database, worker_ids: list[str], limit: timedelta) -> list[str]:
    """Wait up to `limit` until the workers have stopped; return those that have not."""
    deadline = time.monotonic() + limit.total_seconds()
    while True:
        workers = database.every(session, list_workers, where=WorkerFilter(ids=worker_ids))
        session.rollback()
        unstopped_ids = [worker.id for worker in workers if worker.silent_for < DEAD_AFTER]
        if not unstopped_ids or time.monotonic() >= deadline:
            return unstopped_ids
        time.sleep(_POLL_SECONDS)

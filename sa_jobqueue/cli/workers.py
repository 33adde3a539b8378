"""`sa-jobqueue workers`: who runs jobs, and asking some of them to finish and stop."""

from __future__ import annotations

import time
from dataclasses import asdict
from datetime import timedelta
from typing import Any, Final

import click
from sqlalchemy.orm import Session

from sa_jobqueue.cli._options import Database, json_option, seconds, with_database
from sa_jobqueue.cli._output import counted, echo, print_json, print_table
from sa_jobqueue.operations import WorkerFilter, WorkerStatus, drain_workers, list_workers, resize_workers

GONE: Final = timedelta(minutes=1)
"""A worker silent for so long is waited for no more: it was killed, and its row stays a while."""
_LOOK_SECONDS: Final = 0.25

_name_option = click.option("--name", "names", multiple=True, help="Called so, * for any characters; may be repeated.")
_queue_option = click.option("--queue", "queues", multiple=True, help="Who serves this queue; may be repeated.")


@click.group()
def workers() -> None:
    """List workers, ask them to drain, or to run more or fewer jobs at once."""


@workers.command("list")
@_name_option
@_queue_option
@json_option
@with_database
def list_(database: Database, /, *, names: tuple[str, ...], queues: tuple[str, ...], as_json: bool) -> None:
    """List workers as they last told. Silent for more than its time to live (15 s), one is gone, whatever its state."""
    with database.session() as session:
        found = list_workers(session, where=WorkerFilter(names=names, queues=queues), model=database.model)
    if as_json:
        print_json({"workers": [asdict(worker) for worker in found]})
        return
    headings = ["id", "name", "host", "pid", "state", "queues", "slots", "running", "last beat", "asked to drain"]
    print_table(counted(len(found), "worker"), headings, [_row(worker) for worker in found])


def _row(worker: WorkerStatus) -> tuple[Any, ...]:
    return (
        worker.id,
        worker.name,
        worker.host,
        worker.pid,
        worker.state,
        ", ".join(worker.queues),
        worker.concurrency,
        worker.running,
        f"{worker.silent_for.total_seconds():.1f} s ago",
        worker.drain_requested_at,
    )


@workers.command()
@click.argument("ids", metavar="[ID]...", nargs=-1)
@_name_option
@_queue_option
@click.option("--all", "everybody", is_flag=True, help="Every worker of this queue's tables.")
@click.option("--wait", type=seconds, metavar="SECONDS", help="Wait until they have stopped; status 1 if they have not.")
@click.option("--dry-run", is_flag=True, help="Only tell which.")
@json_option
@with_database
def drain(
    database: Database,
    /,
    *,
    ids: tuple[str, ...],
    names: tuple[str, ...],
    queues: tuple[str, ...],
    everybody: bool,
    wait: timedelta | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Ask workers to claim no more, finish what they run and stop. Whatever supervises a worker may start it again."""
    chosen = bool(ids or names or queues)
    if chosen == everybody:
        raise click.UsageError("say which: IDs, --name, --queue, or --all and none of them")
    where = WorkerFilter(ids=ids, names=names, queues=queues)
    with database.session() as session:
        if dry_run:
            asked = sorted(worker.id for worker in list_workers(session, where=where, model=database.model))
        else:
            asked = drain_workers(session, where=where, model=database.model)
            session.commit()
        left = _wait(session, database, asked, wait) if wait is not None and asked and not dry_run else None
    if as_json:
        told: dict[str, Any] = {"would_drain" if dry_run else "asked_to_drain": asked}
        print_json(told if left is None else told | {"still_there": left})
    else:
        echo(f"{counted(len(asked), 'worker')} {'would be ' if dry_run else ''}asked to drain")
        for worker_id in left or ():
            echo(f"{worker_id} is still there", err=True)
    if left:
        raise click.exceptions.Exit(1)


@workers.command()
@click.argument("worker_id", metavar="ID")
@click.argument("number", metavar="[N]", type=int, required=False)
@json_option
@with_database
def concurrency(database: Database, /, *, worker_id: str, number: int | None, as_json: bool) -> None:
    """Have a worker run N jobs at once, until it is started again; without N as many as it was started with."""
    with database.session() as session:
        asked = resize_workers(session, number, where=WorkerFilter(ids=[worker_id]), model=database.model)
        session.commit()
    if not asked:
        raise click.ClickException(f"there is no worker {worker_id!r}; sa-jobqueue workers list has them")
    if as_json:
        print_json({"worker": worker_id, "concurrency_requested": number})
    else:
        what = "as many as it was started with" if number is None else number
        echo(f"{worker_id} was asked to run {what} jobs at once" if number else f"{worker_id} was asked to run {what}")


def _wait(session: Session, database: Database, asked: list[str], limit: timedelta) -> list[str]:
    """Look until none of the workers is there, for at most `limit`; return those that are."""
    deadline = time.monotonic() + limit.total_seconds()
    while True:
        there = list_workers(session, where=WorkerFilter(ids=asked), model=database.model)
        session.rollback()
        left = [worker.id for worker in there if worker.silent_for < GONE]
        if not left or time.monotonic() >= deadline:
            return left
        time.sleep(_LOOK_SECONDS)

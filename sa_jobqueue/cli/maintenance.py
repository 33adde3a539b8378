"""`sa-jobqueue vacuum` and `reindex`: maintenance of the job tables and indexes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import Any, Final

import click
from rich.console import RenderableType
from rich.text import Text

from sa_jobqueue.cli import _options as opts
from sa_jobqueue.cli._output import print_result, shown, table_of
from sa_jobqueue.display.printable import byte_size, span
from sa_jobqueue.observe import maintenance
from sa_jobqueue.observe.health.findings import described
from sa_jobqueue.observe.maintenance import Reindexed, Vacuumed

_lock_timeout: Final = opts.duration_option(
    "--lock-timeout", "Maximum time to wait for a lock.", default=timedelta(seconds=10)
)


@click.command()
@click.argument("tables", metavar="[TABLE]...", nargs=-1)
@_lock_timeout
@opts.reading
def vacuum(database: opts.Database, /, *, tables: tuple[str, ...], lock_timeout: timedelta) -> None:
    """Vacuum the job tables, by default all, and report dead rows that could not be removed and why.

    Readers and writers are not blocked. Status 1 if a table was skipped because of a lock or a missing privilege.
    """
    done = maintenance.vacuum(database.engine(), tables=tables, lock_timeout=lock_timeout, model=database.model)
    headings = ["table", "dead before", "dead after", "size before", "size after", "seconds", "skipped because"]
    parts = [table_of("vacuumed", headings, [_cells(one, one.table, one.dead_before, one.dead_after) for one in done])]
    for one in done:
        if one.kept_for is not None:
            held = "" if one.kept_for.held_for is None else f", open for {span(one.kept_for.held_for)}"
            words = f"{one.dead_after:,} dead rows of {one.table} are kept by {described(one.kept_for)}{held}"
            parts.append(Text(shown(words), style="yellow"))
    _print("vacuumed", done, parts)


@click.command()
@click.argument("indexes", metavar="[INDEX]...", nargs=-1)
@click.option("--all", "every", is_flag=True, help="Rebuild all indexes of the queue.")
@_lock_timeout
@opts.reading
def reindex(database: opts.Database, /, *, indexes: tuple[str, ...], every: bool, lock_timeout: timedelta) -> None:
    """Rebuild indexes concurrently, one after the other.

    Without names: those that are invalid or mostly bloat. Remains of an interrupted rebuild are dropped. Status 1 if an
    index was skipped because of a lock or a missing privilege.
    """
    engine, model = database.engine(), database.model
    done = maintenance.reindex(engine, indexes=indexes, every=every, lock_timeout=lock_timeout, model=model)
    headings = ["index", "table", "size before", "size after", "seconds", "skipped because"]
    _print("reindexed", done, [table_of("rebuilt", headings, [_cells(one, one.index, one.table) for one in done])])


def _print(key: str, done: Sequence[Vacuumed | Reindexed], parts: Sequence[RenderableType]) -> None:
    print_result({key: [asdict(one) for one in done]}, *(parts if done else ["nothing to do"]))
    if any(one.skipped for one in done):
        raise click.exceptions.Exit(1)


def _cells(one: Vacuumed | Reindexed, *first: Any) -> list[Any]:
    return [*first, byte_size(one.bytes_before), byte_size(one.bytes_after), f"{one.seconds:.1f}", one.skipped]

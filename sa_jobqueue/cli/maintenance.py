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
    results = maintenance.vacuum(database.engine(), tables=tables, lock_timeout=lock_timeout, model=database.model)
    headings = ["table", "dead before", "dead after", "size before", "size after", "seconds", "skipped because"]
    parts = [
        table_of(
            "vacuumed", headings, [_cells(result, result.table, result.dead_before, result.dead_after) for result in results]
        )
    ]
    for result in results:
        if result.kept_for is not None:
            duration = "" if result.kept_for.held_for is None else f", open for {span(result.kept_for.held_for)}"
            words = f"{result.dead_after:,} dead rows of {result.table} are kept by {described(result.kept_for)}{duration}"
            parts.append(Text(shown(words), style="yellow"))
    _print("vacuumed", results, parts)


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
    results = maintenance.reindex(engine, indexes=indexes, every=every, lock_timeout=lock_timeout, model=model)
    headings = ["index", "table", "size before", "size after", "seconds", "skipped because"]
    _print(
        "reindexed",
        results,
        [table_of("rebuilt", headings, [_cells(result, result.index, result.table) for result in results])],
    )


def _print(key: str, results: Sequence[Vacuumed | Reindexed], parts: Sequence[RenderableType]) -> None:
    print_result({key: [asdict(result) for result in results]}, *(parts if results else ["nothing to do"]))
    if any(result.skipped for result in results):
        raise click.exceptions.Exit(1)


def _cells(result: Vacuumed | Reindexed, *first: Any) -> list[Any]:
    return [*first, byte_size(result.bytes_before), byte_size(result.bytes_after), f"{result.seconds:.1f}", result.skipped]

"""`sa-jobqueue vacuum`, `reindex` and `optimize`: maintenance of the job tables and indexes."""

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
from sa_jobqueue.observe.health import health
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
    _print(done, [])


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
    _print([], done)


@click.command()
@opts.dry_run_option
@_lock_timeout
@opts.reading
def optimize(database: opts.Database, /, *, dry_run: bool, lock_timeout: timedelta) -> None:
    """Vacuum tables with many dead rows, and rebuild indexes that are mostly bloat."""
    engine = database.engine()
    seen = health(engine, model=database.model)
    tables = [table.name for table in seen.tables if maintenance.worth_vacuuming(table)]
    indexes = [index.name for index in seen.indexes if maintenance.worth_rebuilding(index)]
    if dry_run:
        rows = [f"vacuum {name}" for name in tables] + [f"reindex {name}" for name in indexes]
        print_result({"vacuum": tables, "reindex": indexes}, *(rows or ["nothing to do"]))
        return
    options: dict[str, Any] = {"lock_timeout": lock_timeout, "model": database.model}
    vacuumed = maintenance.vacuum(engine, tables=tables, **options) if tables else []
    # After the vacuum, which may already have freed bloat of an index.
    reindexed = maintenance.reindex(engine, **options)
    _print(vacuumed, reindexed)


def _print(vacuumed: Sequence[Vacuumed], reindexed: Sequence[Reindexed]) -> None:
    parts: list[RenderableType] = [] if vacuumed or reindexed else ["nothing to do"]
    if vacuumed:
        headings = ["table", "dead before", "dead after", "size before", "size after", "seconds", "skipped because"]
        rows = [_cells(one, one.table, one.dead_before, one.dead_after) for one in vacuumed]
        parts.append(table_of("vacuumed", headings, rows))
    if reindexed:
        headings = ["index", "table", "size before", "size after", "seconds", "skipped because"]
        parts.append(table_of("rebuilt", headings, [_cells(one, one.index, one.table) for one in reindexed]))
    for one in vacuumed:
        if one.kept_for is not None:
            held = "" if one.kept_for.held_for is None else f", open for {span(one.kept_for.held_for)}"
            words = f"{one.dead_after:,} dead rows of {one.table} are kept by {described(one.kept_for)}{held}"
            parts.append(Text(shown(words), style="yellow"))
    print_result({"vacuumed": [asdict(one) for one in vacuumed], "reindexed": [asdict(one) for one in reindexed]}, *parts)
    if any(one.skipped for one in vacuumed) or any(one.skipped for one in reindexed):
        raise click.exceptions.Exit(1)


def _cells(one: Vacuumed | Reindexed, *first: Any) -> list[Any]:
    return [*first, byte_size(one.bytes_before), byte_size(one.bytes_after), f"{one.seconds:.1f}", one.skipped]

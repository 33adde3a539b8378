"""`sa-jobqueue restamp`: make rows of a restored database readable by transaction."""

from __future__ import annotations

from dataclasses import asdict

import click

from sa_jobqueue.cli import _options as opts
from sa_jobqueue.cli._output import counted, print_result
from sa_jobqueue.display.progress import ProgressLines
from sa_jobqueue.operations import restored


@click.command()
@opts.reading
def restamp(database: opts.Database, /) -> None:
    """Give restored rows transaction numbers of this cluster. Run it after a restore, if `doctor` asks for it.

    Each row has the number of the transaction that changed it last. After a restore into a cluster with a smaller
    counter, Spark's streams and upTo=watermark would take such rows for rows of the future. Workers can run meanwhile, and
    the command can be interrupted and repeated. Status 1 if locked rows were skipped.
    """
    with database.session() as session, ProgressLines("restamp") as lines:
        total = 0

        def show(rows: int) -> None:
            nonlocal total
            total += rows
            lines.update(total, step="rows changed")

        result = restored.restamp(session, model=database.model, on_progress=show)
        with session.begin():
            tables = restored.restored_tables(session, model=database.model)
    text = f"{counted(result.jobs, 'job')}, {counted(result.attempts, 'attempt')} and "
    text += f"{counted(result.dead_letters, 'dead letter')} have transaction numbers of this cluster now"
    skipped = f"some {' and '.join(tables)} were locked: run it again" if tables else ""
    print_result(asdict(result) | {"skipped_in": tables}, text, *([skipped] if skipped else []))
    if tables:
        raise click.exceptions.Exit(1)

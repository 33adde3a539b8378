"""Selection of the chains of a run: finished chains to which no remaining row refers."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from sqlalchemy import Connection

from sa_jobqueue.models import JobClass
from sa_jobqueue.pipeline.archive.connection import bounded
from sa_jobqueue.pipeline.archive.options import ArchiveOptions, Held, Month
from sa_jobqueue.pipeline.statements import archiving

_SHOWN: Final = 100
"""Held chains that a report names."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Selected chains, which are in a temporary table of the connection."""

    chains: int
    jobs: int
    """Number of jobs of the selected chains, or of those among them that could be locked."""
    held: int
    held_by: tuple[Held, ...]
    after: Any
    """The last chain looked at: the next run begins behind it."""
    is_last: bool
    """Whether it is the last one."""


def choose(
    connection: Connection, model: JobClass, options: ArchiveOptions, *, cutoff: datetime, after: Any = None, room: int
) -> Choice:
    """Choose chains of about `room` jobs, by id from behind `after` on.

    Held back is a chain which a job of another one refers to that is not among the chosen, and all that this one refers to
    in turn. So a chain may be held because what waits for it belongs to a later run; it is looked at again after that.
    Changes: the connection's temporary table. Locks: none. Holds no transaction from one page to the next.
    """
    chains = jobs = 0
    is_last = False
    with connection.begin():
        connection.execute(archiving.drop_candidates(model))
        connection.execute(archiving.create_candidates(model))
    while jobs < room and not is_last:
        given = {"after": after, "scan": options.scan_batch_size, "cutoff": cutoff, "room": room - jobs}
        if after is None:
            del given["after"]
        statement = archiving.choose(model, include_dead=options.include_dead, first=after is None)
        with connection.begin():
            page = connection.execute(statement, given).one()
        chains, jobs = chains + page.taken, jobs + page.jobs
        is_full = page.taken < page.fitting
        is_last = not is_full and page.scanned < options.scan_batch_size
        after = page.last_taken if is_full else page.last_scanned
    held_by: tuple[Held, ...] = ()
    held = 0
    if chains:
        bounded(connection, options, guarded=False)
        with connection.begin():
            connection.execute(archiving.analyze_candidates())
        with connection.begin():
            held_by = tuple(Held(*row) for row in connection.execute(archiving.holders(model), {"limit": _SHOWN}))
        if held_by:
            with connection.begin():
                held = len(connection.execute(archiving.drop_held(model)).all())
        bounded(connection, options, guarded=True)
    return Choice(chains - held, jobs, held, held_by, after, is_last)


def add_chains(
    connection: Connection, model: JobClass, run_id: UUID, *, read_batch_size: int, **ledger: Any
) -> tuple[int, int]:
    """Write a run and its chains into the ledger, in one statement; return the number of its parts and chains."""
    with connection.begin():
        connection.execute(archiving.begin(model), {"id": run_id, **ledger})
        connection.execute(archiving.add_chains(model), {"run_id": run_id, "read_batch_size": read_batch_size})
        found = connection.execute(archiving.parts(model), {"run_id": run_id}).one()
    return found.parts, found.chains


def months(connection: Connection, model: JobClass) -> tuple[Month, ...]:
    """Count the chosen chains by type and month."""
    with connection.begin():
        return tuple(Month(*row) for row in connection.execute(archiving.months(model)))

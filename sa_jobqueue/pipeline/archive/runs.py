"""The archiver: completes unfinished runs, then starts new ones until nothing is left to archive."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from time import monotonic
from typing import Any, Final
from uuid import UUID

from sqlalchemy import Connection

from sa_jobqueue.db.copy import copy_text
from sa_jobqueue.ids import uuid7
from sa_jobqueue.models import JobClass
from sa_jobqueue.pipeline.archive import deleting
from sa_jobqueue.pipeline.archive.connection import bounded
from sa_jobqueue.pipeline.archive.engines import Engine, Parts
from sa_jobqueue.pipeline.archive.errors import ArchiveElsewhereError, ArchiveError
from sa_jobqueue.pipeline.archive.locations import Location
from sa_jobqueue.pipeline.archive.options import ArchiveOptions, ArchiveReport, Held, Listener, Progress, Step
from sa_jobqueue.pipeline.archive.verifying import Contents, count, remove_chains, verify
from sa_jobqueue.pipeline.history import DATASETS
from sa_jobqueue.pipeline.statements import archived, archiving
from sa_jobqueue.types import ArchiveState

_HELD_SHOWN: Final = 100
"""Held chains that a report names."""
_UNFINISHED: Final = 100
_COUNTED: Final = ("chains", "jobs", "attempts", "dead_letters", "blockers", "files", "bytes", "retained")


@dataclass(frozen=True, slots=True)
class Choice:
    """Selected chains, which are in a temporary table of the connection."""

    chains: int
    jobs: int
    """Number of jobs of the selected chains, or of those among them that could be locked."""
    held_chains: int
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
        parameters = {"after": after, "scan": options.scan_batch_size, "cutoff": cutoff, "room": room - jobs}
        if after is None:
            del parameters["after"]
        statement = archiving.choose(model, include_dead=options.include_dead, first=after is None)
        with connection.begin():
            page = connection.execute(statement, parameters).one()
        chains, jobs = chains + page.taken, jobs + page.jobs
        is_full = page.taken < page.fitting
        is_last = not is_full and page.scanned < options.scan_batch_size
        after = page.last_taken if is_full else page.last_scanned
    held_by: tuple[Held, ...] = ()
    held_back = 0
    if chains:
        bounded(connection, options, guarded=False)
        with connection.begin():
            connection.execute(archiving.analyze_candidates())
        with connection.begin():
            held_by = tuple(Held(*row) for row in connection.execute(archiving.holders(model), {"limit": _HELD_SHOWN}))
        if held_by:
            with connection.begin():
                held_back = len(connection.execute(archiving.drop_held(model)).all())
        bounded(connection, options, guarded=True)
    return Choice(chains - held_back, jobs, held_back, held_by, after, is_last)


@dataclass(slots=True)
class _Run:
    """One run, as far as it has come."""

    id: UUID
    state: ArchiveState
    counts: dict[str, int]
    """Number of chains and of rows of each dataset in its files, as in the ledger."""
    parts: int = 0
    jobs: int = 0
    contents: Contents | None = None
    """Contents that this process has read back from its files. Nothing is deleted without them."""


def forget_run(connection: Connection, model: JobClass, run_id: UUID) -> None:
    """Delete a run that has not begun to delete rows, and its plan."""
    with connection.begin():
        connection.execute(archiving.forget_chains(model), {"run_id": run_id})
        connection.execute(archiving.forget_run(model), {"run_id": run_id})


class Archiver:
    """Moves finished chains from the tables of one queue to one place, on a connection that no other archiver has."""

    def __init__(
        self,
        connection: Connection,
        model: JobClass,
        location: Location,
        *,
        engine: Engine,
        options: ArchiveOptions,
        listener: Listener | None,
    ) -> None:
        self._connection = connection
        self._model = model
        self._location = location
        self._engine = engine
        self._options = options
        self._listener = listener
        self._totals = dict.fromkeys(_COUNTED, 0)

    def archive(self, cutoff: datetime) -> ArchiveReport:
        """Archive what ended before `cutoff`. A chain that waits for its turn behind another is looked at again."""
        begun = monotonic()
        self._location.check()
        resumed = self.resume_runs()
        runs = held_back = 0
        held_by: tuple[Held, ...] = ()
        while True:
            moved = held_back = 0
            held_by = ()
            after, is_last = None, False
            while not is_last and runs != self._options.max_runs:
                room = self._options.max_jobs
                choice = choose(self._connection, self._model, self._options, cutoff=cutoff, after=after, room=room)
                after, is_last = choice.after, choice.is_last
                held_back, held_by = held_back + choice.held_chains, held_by or choice.held_by
                if choice.chains:
                    runs += 1
                    moved += self._finish(self._plan(cutoff, choice.jobs))
            # What was held by chains of a later run may go now that those are gone.
            if not held_back or not moved or runs == self._options.max_runs:
                break
        return ArchiveReport(
            path=self._location.name,
            engine=self._engine.name,
            cutoff=cutoff,
            runs=runs,
            resumed=resumed,
            held_chains=held_back,
            held_by=held_by,
            seconds=monotonic() - begun,
            **self._totals,
        )

    def resume_runs(self) -> int:
        """Bring the runs to their end that others began; return how many.

        If its files were not verified, it is restarted: its files and its plan are deleted; its chains were never touched.
            Raises: ArchiveElsewhereError for one of another place.
        """
        with self._connection.begin():
            unfinished_runs = self._connection.execute(
                archiving.runs(self._model, unfinished=True), {"limit": _UNFINISHED}
            ).all()
        for row in unfinished_runs:
            if row.path != self._location.name:
                raise ArchiveElsewhereError(row.id, row.path, self._location.name)
        for row in unfinished_runs:
            run = _Run(
                row.id, ArchiveState(row.state), {"chains": row.chains} | {name: getattr(row, name) for name in DATASETS}
            )
            if run.state is ArchiveState.PLANNED:
                self._abandon(run)
            else:
                self._finish(run)
        return len(unfinished_runs)

    def _plan(self, cutoff: datetime, jobs: int) -> _Run:
        run = _Run(uuid7(), ArchiveState.PLANNED, {}, (jobs - 1) // self._options.read_batch_size + 1, jobs)
        ledger = {"id": run.id, "path": self._location.name, "engine": self._engine.name, "cutoff": cutoff}
        chains = {"run_id": run.id, "read_batch_size": self._options.read_batch_size}
        with self._connection.begin():
            self._connection.execute(archiving.begin(self._model), ledger)
            self._connection.execute(archiving.add_chains(self._model), chains)
        self._report(run, Step.PLANNED)
        return run

    def _abandon(self, run: _Run) -> None:
        with self._location.usable():
            self._location.discard(run.id)
        self._report(run, Step.ABANDONED_FILES)
        forget_run(self._connection, self._model, run.id)
        self._report(run, Step.ABANDONED)

    def _finish(self, run: _Run) -> int:
        """Complete a run from its current state; return the number of chains it moved."""
        with self._location.usable():
            if run.state is ArchiveState.PLANNED:
                self._write(run)
            if run.state is ArchiveState.WRITTEN:
                self._publish(run)
            if run.state in {ArchiveState.WRITTEN, ArchiveState.DELETING}:
                self._delete(run)
            return self._reconcile(run)

    def _write(self, run: _Run) -> None:
        """Write the files where readers do not see them, read them back, and record that in the ledger."""
        queries = {name: copy_text(archived.read(self._model, dataset, run.id, 0)) for name, dataset in DATASETS.items()}
        parts = Parts(run.id, run.parts, self._location, queries)
        new_files = self._engine.write(self._connection, parts, self._counter(run, Step.PART, run.jobs))
        self._report(run, Step.FILES)
        self._location.list_written(run.id, (new_file.path for new_file in new_files))
        files = self._location.hidden_files(run.id)
        expected = dict.fromkeys(DATASETS, 0)
        for new_file in new_files:
            expected[new_file.dataset] += new_file.rows
        for file in files:
            self._location.sync(file.path)
        run.contents = verify(self._location, files, expected)
        self._report(run, Step.VERIFIED)
        run.counts = {"chains": len(run.contents.chains), **run.contents.counts}
        with self._connection.begin():
            self._advance(run, ArchiveState.WRITTEN)
        self._report(run, Step.WRITTEN)

    def _publish(self, run: _Run) -> None:
        """Move the files to where readers see them. Before anything is deleted: no row is ever in neither place."""
        for file in self._location.hidden_files(run.id):
            self._location.show(run.id, file)
            self._report(run, Step.PUBLISHED)
        self._location.discard(run.id)
        self._report(run, Step.DELETING)

    def _delete(self, run: _Run) -> None:
        """Delete the rows that the files have, after reading them unless this process has just done so."""
        if run.contents is None:
            expected = {name: run.counts[name] for name in DATASETS}
            run.contents = verify(self._location, self._location.shown_files(run.id), expected)
        if run.state is ArchiveState.WRITTEN:
            with self._connection.begin():
                self._advance(run, ArchiveState.DELETING)
        counter = self._counter(run, Step.DELETED_BATCH, run.counts["jobs"])
        delete_batch_size = self._options.delete_batch_size
        deleting.delete_archived(
            self._connection, self._model, run.id, run.contents, delete_batch_size=delete_batch_size, on_progress=counter
        )
        run.contents = None
        with self._connection.begin():
            self._advance(run, ArchiveState.DELETED)
        self._report(run, Step.DELETED)

    def _reconcile(self, run: _Run) -> int:
        """Take what stayed in the tables out of the files, and close the run."""
        with self._connection.begin():
            stayed = self._connection.scalars(archived.remaining(self._model), {"run_id": run.id}).all()
        files = self._location.shown_files(run.id)
        remove_chains(self._location, files, map(str, stayed), lambda: self._report(run, Step.REWRITTEN))
        files = self._location.shown_files(run.id)
        rows, chains = count(self._location, files)
        stay = run.counts["chains"] - chains
        run.counts = {"chains": chains, **rows}
        with self._connection.begin():
            self._connection.execute(archiving.forget_chains(self._model), {"run_id": run.id})
            self._advance(run, ArchiveState.DONE, retained=stay)
        for name, number in run.counts.items():
            self._totals[name] += number
        self._totals["retained"] += stay
        self._totals["files"] += len(files)
        self._totals["bytes"] += sum(file.bytes for file in files)
        self._report(run, Step.DONE)
        return chains

    def _advance(self, run: _Run, state: ArchiveState, *, retained: int = 0) -> None:
        """Record a state and the counts of a run in the ledger, in the caller's transaction."""
        parameters = {"run_id": run.id, "was": run.state, "becomes": state, "n_retained": retained}
        counts = {f"n_{name}": number for name, number in run.counts.items()}
        if self._connection.execute(archiving.advance(self._model), parameters | counts).rowcount != 1:
            raise ArchiveError(f"run {run.id} is no longer {run.state}: another archiver changed it; try again")
        run.state = state

    def _report(self, run: _Run, step: Step, jobs_done: int = 0, total: int = 0) -> None:
        if self._listener is not None:
            self._listener(Progress(run.id, step, jobs_done, total))

    def _counter(self, run: _Run, step: Step, total: int) -> Callable[[int], None]:
        """Return a function that counts jobs and reports the progress."""
        jobs_done = 0

        def on_progress(jobs: int) -> None:
            nonlocal jobs_done
            jobs_done += jobs
            self._report(run, step, jobs_done, total)

        return on_progress

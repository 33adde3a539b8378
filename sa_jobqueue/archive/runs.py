"""The archiver: it brings unfinished runs to their end, then makes new ones until nothing is left to archive."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from time import monotonic
from typing import Any, Final
from uuid import UUID

from sqlalchemy import Connection

from sa_jobqueue.archive import deleting, planning, retained
from sa_jobqueue.archive.engines import Engine, Task
from sa_jobqueue.archive.errors import ArchiveElsewhereError, ArchiveError
from sa_jobqueue.archive.locations import File, Place
from sa_jobqueue.archive.options import ArchiveOptions, ArchiveReport, Held, Listener, Progress, Step
from sa_jobqueue.archive.verifying import Contents, verify
from sa_jobqueue.history import DATASETS
from sa_jobqueue.ids import uuid7
from sa_jobqueue.models import JobMixin
from sa_jobqueue.statements import archived, archiving
from sa_jobqueue.types import ArchiveState

_UNFINISHED: Final = 100
_COUNTED: Final = ("chains", "jobs", "attempts", "dead_letters", "blockers", "files", "bytes", "survivors")


@dataclass(slots=True)
class _Run:
    """One run, as far as it has come."""

    id: UUID
    state: ArchiveState
    counts: dict[str, int]
    """What is in its files, as the ledger has it: chains, and rows of each dataset."""
    parts: int = 0
    jobs: int = 0
    files: list[File] | None = None
    """What this process has verified: a file that came later, of a task that outlived its driver, is not published."""
    contents: Contents | None = None
    """What was read back from its files by this process; nothing is deleted without."""


class Archiver:
    """Moves finished chains from the tables of one queue to one place, on a connection that no other archiver has."""

    def __init__(
        self,
        connection: Connection,
        model: type[JobMixin[Any]],
        place: Place,
        *,
        engine: Engine,
        options: ArchiveOptions,
        listener: Listener | None,
    ) -> None:
        self._connection = connection
        self._model = model
        self._place = place
        self._engine = engine
        self._options = options
        self._listener = listener
        self._totals = dict.fromkeys(_COUNTED, 0)

    def archive(self, cutoff: datetime) -> ArchiveReport:
        """Archive what ended before `cutoff`. A chain that waits for its turn behind another is looked at again."""
        begun = monotonic()
        self._place.check()
        taken_up = self.take_up()
        runs = held = 0
        held_by: tuple[Held, ...] = ()
        while True:
            moved = held = 0
            held_by = ()
            after, is_last = None, False
            while not is_last and runs != self._options.max_runs:
                choice = self._choose(cutoff, after)
                after, is_last = choice.after, choice.is_last
                held, held_by = held + choice.held, held_by or choice.held_by
                if choice.chains:
                    runs += 1
                    moved += self._finish(self._plan(cutoff, choice.jobs))
            # What was held by chains of a later run may go now that those are gone.
            if not held or not moved or runs == self._options.max_runs:
                break
        return ArchiveReport(
            path=self._place.name,
            engine=self._engine.name,
            cutoff=cutoff,
            runs=runs,
            taken_up=taken_up,
            held=held,
            held_by=held_by,
            seconds=monotonic() - begun,
            **self._totals,
        )

    def take_up(self) -> int:
        """Bring the runs to their end that others began; return how many.

        If its files were not verified, it is restarted: its files and its plan are deleted; its chains were never touched.
            Raises: ArchiveElsewhereError for one of another place.
        """
        with self._connection.begin():
            found = self._connection.execute(archiving.runs(self._model, unfinished=True), {"limit": _UNFINISHED}).all()
        for row in found:
            if row.path != self._place.name:
                raise ArchiveElsewhereError(row.id, row.path, self._place.name)
        for row in found:
            run = _Run(
                row.id, ArchiveState(row.state), {"chains": row.chains} | {name: getattr(row, name) for name in DATASETS}
            )
            if run.state is ArchiveState.PLANNED:
                self._abandon(run)
            else:
                self._finish(run)
        return len(found)

    def _choose(self, cutoff: datetime, after: Any) -> planning.Choice:
        room = self._options.max_jobs
        return planning.choose(self._connection, self._model, self._options, cutoff=cutoff, after=after, room=room)

    def _plan(self, cutoff: datetime, jobs: int) -> _Run:
        run_id = uuid7()
        parts, chains = planning.take_on(
            self._connection,
            self._model,
            run_id,
            part_jobs=self._options.part_jobs,
            path=self._place.name,
            engine=self._engine.name,
            cutoff=cutoff,
        )
        run = _Run(run_id, ArchiveState.PLANNED, {"chains": chains}, parts, jobs)
        self._tell(run, Step.PLANNED)
        return run

    def _abandon(self, run: _Run) -> None:
        with self._place.usable():
            self._place.discard(run.id)
        self._tell(run, Step.ABANDONED_FILES)
        with self._connection.begin():
            self._connection.execute(archiving.forget_chains(self._model), {"run_id": run.id})
            self._connection.execute(archiving.forget_run(self._model), {"run_id": run.id})
        self._tell(run, Step.ABANDONED)

    def _finish(self, run: _Run) -> int:
        """Bring a run to its end from wherever it is; return how many chains it moved."""
        with self._place.usable():
            if run.state is ArchiveState.PLANNED:
                self._write(run)
            if run.state is ArchiveState.WRITTEN:
                self._publish(run)
            if run.state is ArchiveState.DELETING:
                self._delete(run)
            return self._settle(run)

    def _write(self, run: _Run) -> None:
        """Write the files where readers do not see them, read them back, and record that in the ledger."""
        counter = self._counter(run, Step.PART, run.jobs)
        written = self._engine.write(Task(run.id, run.parts, self._model, self._place, self._connection, counter))
        self._tell(run, Step.FILES)
        run.files = self._place.hidden_files(run.id)
        for file in run.files:
            self._place.sync(file.path)
        run.contents = verify(self._place, run.files, written)
        self._tell(run, Step.VERIFIED)
        run.counts = {"chains": len(run.contents.chains), **run.contents.counts}
        self._advance(run, ArchiveState.WRITTEN, survivors=0)
        self._tell(run, Step.WRITTEN)

    def _publish(self, run: _Run) -> None:
        """Move the files to where readers see them. Before anything is deleted: no row is ever in neither place."""
        for file in self._place.hidden_files(run.id) if run.files is None else run.files:
            self._place.show(run.id, file)
            self._tell(run, Step.PUBLISHED)
        self._place.discard(run.id)
        self._advance(run, ArchiveState.DELETING)
        self._tell(run, Step.DELETING)

    def _delete(self, run: _Run) -> None:
        """Delete what the files have, after reading them unless this process has just done so."""
        if run.contents is None:
            expected = {name: run.counts[name] for name in DATASETS}
            run.contents = verify(self._place, self._place.shown_files(run.id), expected)
        counter = self._counter(run, Step.DELETED_BATCH, run.counts["jobs"])
        batch_jobs = self._options.batch_jobs
        deleting.delete_archived(self._connection, self._model, run.id, run.contents, batch_jobs=batch_jobs, tell=counter)
        run.contents = None
        self._advance(run, ArchiveState.DELETED)
        self._tell(run, Step.DELETED)

    def _settle(self, run: _Run) -> int:
        """Take what stayed in the tables out of the files, and close the run."""
        with self._connection.begin():
            stayed = self._connection.execute(archived.remaining(self._model), {"run_id": run.id}).all()
        files = self._place.shown_files(run.id)
        retained.take_out(self._place, files, (str(row.chain_id) for row in stayed), lambda: self._tell(run, Step.REWRITTEN))
        files = self._place.shown_files(run.id)
        rows, chains = retained.count(self._place, files)
        stay = run.counts["chains"] - chains
        run.counts = {"chains": chains, **rows}
        with self._connection.begin():
            self._connection.execute(archiving.forget_chains(self._model), {"run_id": run.id})
            self._set_state(run, ArchiveState.DONE, survivors=stay)
        run.state = ArchiveState.DONE
        for name, number in run.counts.items():
            self._totals[name] += number
        self._totals["survivors"] += stay
        self._totals["files"] += len(files)
        self._totals["bytes"] += sum(file.bytes for file in files)
        self._tell(run, Step.DONE)
        return chains

    def _advance(self, run: _Run, state: ArchiveState, survivors: int | None = None) -> None:
        with self._connection.begin():
            self._set_state(run, state, survivors=survivors)
        run.state = state

    def _set_state(self, run: _Run, state: ArchiveState, *, survivors: int | None) -> None:
        given: dict[str, Any] = {"run_id": run.id, "was": run.state, "becomes": state}
        if survivors is not None:
            given |= {f"n_{name}": number for name, number in run.counts.items()} | {"n_survivors": survivors}
        statement = archiving.advance(self._model, counted=survivors is not None)
        if self._connection.execute(statement, given).rowcount != 1:
            raise ArchiveError(f"run {run.id} is no longer {run.state}: another archiver changed it; try again")

    def _tell(self, run: _Run, step: Step, done: int = 0, total: int = 0) -> None:
        if self._listener is not None:
            self._listener(Progress(run.id, step, done, total))

    def _counter(self, run: _Run, step: Step, total: int) -> Callable[[int], None]:
        """Return what adds up jobs, and tells."""
        done = 0

        def tell(jobs: int) -> None:
            nonlocal done
            done += jobs
            self._tell(run, step, done, total)

        return tell

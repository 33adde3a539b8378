"""An archiver killed after any of its steps and started again: every row is there once, as it was."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event, text

from sa_jobqueue.pipeline.archive import ArchiveOptions, Progress, Step, archive
from tests.archive.sample_data import chain, fill, in_archive, in_tables, states, together
from tests.fixtures.transactions import write
from tests.fixtures.variants import variants

pytestmark = pytest.mark.parametrize("database_url", ["oldest"], indirect=True)

MONTH = timedelta(days=30)
SMALL = ArchiveOptions(include_dead=True, read_batch_size=4, delete_batch_size=3)
"""Several of everything: parts, files, batches."""


class Killed(BaseException):
    """What no code of the archiver's may catch."""


class Killer:
    """Redrives a dead chain as soon as it is written, and kills the archiver at the nth time of a step."""

    def __init__(self, engine: Engine, step: Step | None, time: int) -> None:
        self._engine = engine
        self._point = (step, time)
        self.seen: Counter[Step] = Counter()

    def __call__(self, progress: Progress) -> None:
        self.seen[progress.step] += 1
        if progress.step is Step.WRITTEN and self.seen[Step.WRITTEN] == 1:
            redrive(self._engine, chain(7))
        if (progress.step, self.seen[progress.step]) == self._point:
            raise Killed


def redrive(engine: Engine, job_id: str) -> None:
    write(engine, "UPDATE job_queue SET status = 'pending' WHERE id = :id AND status = 'dead'", {"id": job_id})


def test_the_connection_is_closed_when_an_interrupt_ends_a_statement(engine: Engine, tmp_path: Path) -> None:
    connections = []

    def interrupt(cursor: Any, statement: str, parameters: Any, context: Any) -> None:
        if "INSERT INTO archive_run" in statement:
            connections.append(cursor.connection)
            raise Killed

    fill(engine)
    event.listen(engine, "do_execute", interrupt)
    with pytest.raises(Killed):
        archive(engine, tmp_path, before=MONTH)
    event.remove(engine, "do_execute", interrupt)
    assert [connection.closed for connection in connections] == [True]


UNDISTURBED = [step for step in Step if not step.name.startswith("ABANDONED")]


@pytest.mark.parametrize(
    "step", variants(UNDISTURBED, default=[Step.PLANNED, Step.FILES, Step.PUBLISHED, Step.DELETED_BATCH])
)
@pytest.mark.parametrize("times", [(1,), pytest.param((2, 3), marks=pytest.mark.long)], ids=["first", "later"])
def test_a_run_killed_after_a_step_is_resumed_and_finished(
    engine: Engine, tmp_path: Path, step: Step, times: tuple[int, ...]
) -> None:
    killed = 0
    for time in times:
        fill(engine)
        before = in_tables(engine)
        path = tmp_path / str(time)
        killer = Killer(engine, step, time)
        try:
            archive(engine, path, before=MONTH, options=SMALL, on_progress=killer)
        except Killed:
            killed += 1
        second = Killer(engine, None, 0)
        second.seen = Counter({Step.WRITTEN: killer.seen[Step.WRITTEN]})
        archive(engine, path, before=MONTH, options=SMALL, on_progress=second)
        after, archived = in_tables(engine), in_archive(path)
        assert set(states(engine)) == {"done"}
        assert not list(path.glob("_*"))
        assert not list(path.rglob("_rewriting*"))
        # What stays: the pending chain, and the one that was redriven, as it is now.
        assert {key[0] for key in after["jobs"]} == {chain(7), chain(9)}
        both = together(after, archived)
        assert {name: rows.keys() for name, rows in both.items()} == {name: rows.keys() for name, rows in before.items()}
        assert all(row == before[name][key] for name, rows in archived.items() for key, row in rows.items())
        sweep(engine)
    assert killed or 1 not in times  # some steps are taken once


@pytest.mark.long
@pytest.mark.parametrize("step", [Step.ABANDONED_FILES, Step.ABANDONED])
def test_a_run_killed_during_its_cleanup_is_finished(engine: Engine, tmp_path: Path, step: Step) -> None:
    fill(engine)
    before = in_tables(engine)
    for point in (Step.FILES, step):
        with pytest.raises(Killed):
            archive(engine, tmp_path, before=MONTH, options=SMALL, on_progress=Killer(engine, point, 1))
    archive(engine, tmp_path, before=MONTH, options=SMALL)
    assert together(in_tables(engine), in_archive(tmp_path)) == before
    assert states(engine) == ["done"]


CHILD = """
import os, sys
from datetime import timedelta
from sa_jobqueue.pipeline.archive import ArchiveOptions, archive
from tests.fixtures.variants import variants
seen = []
def kill(progress):
    seen.append(progress.step.value)
    if seen.count(sys.argv[3]) == 2:
        os._exit(9)
archive(sys.argv[1], sys.argv[2], before=timedelta(days=30), on_progress=kill,
    options=ArchiveOptions(include_dead=True, read_batch_size=4, delete_batch_size=3))
"""


@pytest.mark.slow
def test_a_run_of_a_killed_process_is_finished_by_the_next(engine: Engine, tmp_path: Path) -> None:
    fill(engine)
    before = in_tables(engine)
    arguments: list[Any] = [engine.url.render_as_string(hide_password=False), tmp_path, Step.DELETED_BATCH.value]
    process = subprocess.run([sys.executable, "-c", CHILD, *arguments], check=False, env=os.environ, timeout=240)
    assert process.returncode == 9
    report = archive(engine, tmp_path, before=MONTH, options=SMALL)
    assert report.resumed == 1
    assert together(in_tables(engine), in_archive(tmp_path)) == before


def sweep(engine: Engine) -> None:
    with engine.begin() as connection:
        for table in ("job_blocker", "job_attempt", "dead_letter", "job", "archive_chain", "archive_run"):
            connection.execute(text(f"DELETE FROM {table}"))

"""Programs of two releases work on the same tables, in both directions and with each kind of operation."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.contracts.packages import ROOT
from tests.rehearsal.releases import ADDED, DROPPED, make_release

PROGRAM = Path(__file__).with_name("program.py")
COMPLETE = ["completed"] * 7
"""The jobs of the type `complete`: enqueued singly, by two others, by a chain, by two payloads and by a schedule."""


class StepError(Exception):
    """A step of a program failed."""


class Program:
    """A program on one release of the library, which does a step for each line that it reads."""

    def __init__(self, name: str, library: Path, url: str, payload_version: int, log: Path) -> None:
        self.name = name
        self._log = log
        environment = os.environ | {"SA_JOBQUEUE_URL": url, "PYTHONPATH": str(library)}
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                [sys.executable, str(PROGRAM), str(payload_version)],
                env=environment,
                cwd=library,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def run(self, step: str) -> Any:
        """Run a step and return its result. Raises: StepError with the end of its traceback."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{step}\n")
        self._process.stdin.flush()
        if result := self._process.stdout.readline():
            return json.loads(result)
        raise StepError(f"{self.name} release, {step}: {self._log.read_text()[-3000:]}")

    def end(self) -> None:
        self._process.communicate()


@dataclass
class Rehearsal:
    """Runs the steps of programs on the old and the new release, on tables that the new one has migrated."""

    old: Program
    new: Program
    completed_steps: list[str] = field(default_factory=list)

    @classmethod
    @contextmanager
    def on(cls, url: str, old: Path, new: Path, logs: Path) -> Iterator[Rehearsal]:
        """Start both programs, create the tables by the old one and upgrade them by the new one."""
        programs = (Program("old", old, url, 1, logs / "old"), Program("new", new, url, 2, logs / "new"))
        try:
            rehearsal = cls(*programs)
            assert rehearsal.run("old", "migrate") == 0
            assert rehearsal.run("new", "migrate") >= 1
            yield rehearsal
        finally:
            for program in programs:
                program.end()

    def run(self, release: str, step: str) -> Any:
        """Run a step of a release. Raises: StepError with the end of its traceback."""
        result = (self.old if release == "old" else self.new).run(step)
        self.completed_steps.append(f"{release} {step}")
        return result

    def rehearse(self, *, producer: str, worker: str) -> None:
        """Enqueue by one release and work by the other; both operate. Raises: StepError, AssertionError."""
        self.run(producer, "enqueue")
        self.run(worker, "work")
        assert self.run("new", "mark") >= 2
        self.run(producer, "send")
        self.run(worker, "work")
        statuses = self.run("old", "report")
        # A worker of the old release leaves the new payload to a worker that knows its version.
        has_newer_payload = producer == "new"
        assert statuses.pop("complete") == COMPLETE
        assert statuses.pop("ship") == ["pending" if has_newer_payload else "completed"]
        assert statuses.pop("die") == ["dead"]
        assert set(map(tuple, statuses.values())) == {("completed",)}, statuses
        assert self.run("new", "report")["wait"] == ["completed"]
        assert self.run("old", "outcomes") == self.run("new", "outcomes") == ["snoozed", "suspended"]
        assert self.run(worker, "redrive") == ["die"]
        self.run("new", "repair")
        self.run("new", "work")
        statuses = self.run("old", "report")
        assert (statuses["die"], statuses["ship"]) == (["completed"], ["completed"])
        assert self.run(worker, "delete") == 0


@pytest.fixture
def next_release(tmp_path: Path) -> Path:
    return make_release(tmp_path / "next", ADDED, has_column=True)


@pytest.mark.long
@pytest.mark.parametrize(("producer", "worker"), [("new", "old"), ("old", "new")], ids=["old worker", "new worker"])
def test_two_releases_work_on_the_same_tables(
    empty_database_url: str, next_release: Path, tmp_path: Path, producer: str, worker: str
) -> None:
    with Rehearsal.on(empty_database_url, ROOT, next_release, tmp_path) as rehearsal:
        rehearsal.rehearse(producer=producer, worker=worker)


@pytest.mark.long
def test_a_release_that_drops_a_column_which_the_one_before_writes_fails_the_rehearsal(
    empty_database_url: str, next_release: Path, tmp_path: Path
) -> None:
    dropping = make_release(tmp_path / "dropping", ADDED, DROPPED, has_column=False)
    with (
        Rehearsal.on(empty_database_url, next_release, dropping, tmp_path) as rehearsal,
        pytest.raises(StepError, match=r"old release, enqueue: [\s\S]*table job has no column 'remark'"),
    ):
        rehearsal.rehearse(producer="old", worker="new")
    assert rehearsal.completed_steps == ["old migrate", "new migrate"]

"""Retention, redrives, deletions, erasures and kills at random steps of an archiver: no row is lost, or in two places."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from sa_jobqueue.errors import ChainReferencedError, NotFoundError
from sa_jobqueue.operations import PruneCursor, delete_chains, prune, redrive_dead_letters
from sa_jobqueue.pipeline.archive import ArchiveOptions, Progress, abandon_run, archive, archive_runs, erase
from sa_jobqueue.pipeline.archive.errors import ArchiveError
from sa_jobqueue.settings import Retention, RetentionRules
from tests.archive.disturbing import MONTH
from tests.archive.sample_data import chain, chains_in, fill, in_archive, in_tables, states, together

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("database_url", ["newest"], indirect=True)]

AGE = timedelta(days=35)
RULES = RetentionRules(
    default=Retention(completed=AGE, cancelled=AGE, dead=AGE, dead_letters=timedelta(microseconds=1)),
)
ENDED = range(1, 9)
MOST_CHANGES = 10


class KilledError(Exception):
    """The archiver was killed."""


class Disturber:
    """Does random things to the queue and the archive, and remembers which chains it has removed on purpose."""

    def __init__(self, engine: Engine, path: Path, random: Random) -> None:
        self.engine = engine
        self.path = path
        self.random = random
        self.changes: list[str] = []
        self.removed_chains: set[str] = set()

    def on_progress(self, _: Progress) -> None:
        if len(self.changes) < MOST_CHANGES and self.random.random() < 0.3:
            if self.random.random() < 0.3:
                self.changes.append("kill")
                raise KilledError
            self.disturb(self.apply_retention, self.redrive, self.delete, self.change_output)

    def disturb(self, *actions: Callable[[], None]) -> None:
        action = self.random.choice(actions)
        self.changes.append(action.__name__)
        action()

    def apply_retention(self) -> None:
        in_table, planned = self._chains("job"), self._chains("archive_chain")
        with Session(self.engine) as session, session.begin():
            cursor: PruneCursor | None = PruneCursor()
            while cursor is not None:
                cursor = prune(session, RULES, cursor=cursor).next
        pruned_chains = in_table - self._chains("job")
        assert not pruned_chains & planned
        self.removed_chains |= pruned_chains

    def redrive(self) -> None:
        with Session(self.engine) as session, session.begin():
            redrive_dead_letters(session)

    def delete(self) -> None:
        in_table = self._chains("job")
        deleted_chain = UUID(chain(self.random.choice(ENDED)))
        with suppress(NotFoundError, ChainReferencedError), Session(self.engine) as session, session.begin():
            delete_chains(session, [deleted_chain], cascade=True)
        self.removed_chains |= in_table - self._chains("job")

    def erase(self) -> None:
        try:
            self.removed_chains |= {*erase(self.engine, self.path, chain_ids=[chain(self.random.choice(ENDED))]).chain_ids}
        except ArchiveError as error:
            self.changes.append(type(error).__name__)

    def abandon(self) -> None:
        for run in archive_runs(self.engine):
            try:
                abandon_run(self.engine, run.id)
            except ArchiveError as error:
                self.changes.append(type(error).__name__)

    def change_output(self) -> None:
        with self.engine.begin() as connection:
            statement = text("UPDATE job SET output = '\"changed\"' WHERE chain_id = :chain AND status = 'completed'")
            connection.execute(statement, {"chain": chain(self.random.choice(ENDED))})

    def _chains(self, table: str) -> set[str]:
        with self.engine.connect() as connection:
            return set(connection.scalars(text(f"SELECT DISTINCT CAST(chain_id AS text) FROM {table}")))


@pytest.mark.parametrize("seed", range(6))
def test_every_chain_is_in_one_place_or_was_removed_on_purpose(engine: Engine, tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    fill(engine)
    before = in_tables(engine)
    options = ArchiveOptions(
        include_dead=random.random() < 0.5,
        max_jobs=random.choice([2, 4, 200]),
        delete_batch_size=random.choice([1, 3, 100]),
    )
    disturber = Disturber(engine, tmp_path / "archive", random)
    arguments: dict[str, Any] = {"before": MONTH, "options": options}
    for _ in range(4):
        with suppress(KilledError):
            archive(engine, disturber.path, **arguments, on_progress=disturber.on_progress)
        disturber.disturb(disturber.apply_retention, disturber.redrive, disturber.erase, disturber.abandon)
    archive(engine, disturber.path, **arguments)
    archived_rows, table_rows = in_archive(disturber.path), in_tables(engine)
    together(archived_rows, table_rows)
    archived_chains, table_chains = chains_in(archived_rows), chains_in(table_rows)
    story = (options, disturber.changes)
    assert not archived_chains & table_chains, story
    assert chains_in(before) - archived_chains - table_chains == disturber.removed_chains, story
    assert set(states(engine)) <= {"done"}
    chain_by_job = {row["id"]: row["chain_id"] for row in before["jobs"].values()}
    for rows, chains in ((archived_rows, archived_chains), (table_rows, table_chains)):
        for name in ("attempts", "blockers"):
            expected = {key for key, row in before[name].items() if chain_by_job[row["job_id"]] in chains}
            assert rows[name].keys() == expected, story

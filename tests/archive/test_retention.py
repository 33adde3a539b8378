"""Retention beside an archiver: the chains that it would delete are in the files at the end, in each order."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from sa_jobqueue.operations import PruneCursor, Pruned, delete_chains, prune
from sa_jobqueue.pipeline.archive import ArchiveOptions, Step, archive, archive_runs
from sa_jobqueue.settings import Retention, RetentionRules
from tests.archive.disturbing import ARCHIVED, MONTH, at, before_statement, execute
from tests.archive.sample_data import Rows, chain, chains_in, fill, in_archive, in_tables, states, together
from tests.fixtures.transactions import call, write

pytestmark = pytest.mark.parametrize("database_url", ["newest"], indirect=True)

AGE = timedelta(days=35)
CHAINS = RetentionRules(default=Retention(completed=AGE, cancelled=AGE, dead=AGE))
DEAD_LETTERS = RetentionRules(default=Retention(dead_letters=timedelta(microseconds=1)))
REDRIVEN = f"""INSERT INTO dead_letter
  (id, job_id, chain_id, queue, fairness_key, type_name, input, input_version, reason, attempts, resolution, resolved_at)
VALUES (gen_random_uuid(), '{chain(1)}', '{chain(1)}', 'default', '', 'type1', '{{}}', 1, 'exhausted', 1, 'redriven',
  now() - interval '1 day')"""
SMALL = ArchiveOptions(delete_batch_size=1)
STEPS = [Step.PLANNED, Step.WRITTEN, Step.PUBLISHED, Step.DELETED_BATCH, Step.DELETED]


def prune_everything(session: Session, rules: RetentionRules) -> list[Pruned]:
    cursor: PruneCursor | None = PruneCursor()
    pages = []
    while cursor is not None:
        pages.append(prune(session, rules, cursor=cursor))
        cursor = pages[-1].next
    return pages


def prune_committed(engine: Engine, rules: RetentionRules = CHAINS) -> Callable[[], None]:
    def apply_retention() -> None:
        call(engine, prune_everything, rules)

    return apply_retention


def assert_archived(before: Rows, path: Path, engine: Engine, chains: set[str] = ARCHIVED) -> None:
    """Every row of the chains that went is in the files, as it was."""
    archived = in_archive(path)
    assert chains_in(archived) == chains
    assert not chains_in(in_tables(engine)) & chains
    for name, rows in archived.items():
        assert rows == {key: row for key, row in before[name].items() if key in rows}
    expected = {key for key, row in before["jobs"].items() if row["chain_id"] in chains}
    assert archived["jobs"].keys() == expected
    job_ids = {key[0] for key in expected}
    for name in ("attempts", "dead_letters"):
        assert {row["id" if name == "dead_letters" else "job_id"] for row in archived[name].values()} == {
            row["id" if name == "dead_letters" else "job_id"] for row in before[name].values() if row["job_id"] in job_ids
        }


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.value)
def test_retention_leaves_the_chains_of_a_run_to_the_archiver(engine: Engine, tmp_path: Path, step: Step) -> None:
    fill(engine)
    before = in_tables(engine)
    archive(engine, tmp_path, before=MONTH, options=SMALL, on_progress=at(step, prune_committed(engine)))
    assert_archived(before, tmp_path, engine)


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.value)
def test_retention_between_a_killed_archiver_and_the_next(engine: Engine, tmp_path: Path, step: Step) -> None:
    fill(engine)
    before = in_tables(engine)

    def kill() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        archive(engine, tmp_path, before=MONTH, options=SMALL, on_progress=at(step, kill))
    prune_committed(engine)()
    assert archive(engine, tmp_path, before=MONTH, options=SMALL).resumed == 1
    assert_archived(before, tmp_path, engine)


def test_a_chain_that_retention_is_deleting_is_not_planned(engine: Engine, tmp_path: Path) -> None:
    fill(engine)
    with Session(engine) as session:
        # Retention has locked and deleted them, and commits when the archiver has published its files.
        with before_statement(engine, "WITH candidate AS", lambda: (prune_everything(session, CHAINS), None)[1]):
            report = archive(engine, tmp_path, before=MONTH, on_progress=at(Step.DELETING, session.commit))
        session.commit()
    assert (report.chains, report.retained) == (0, 0)
    assert (chains_in(in_archive(tmp_path)), chains_in(in_tables(engine)) & (ARCHIVED - {chain(7)})) == (set(), set())


def test_a_chain_that_retention_has_locked_but_keeps_is_archived_by_the_next_run(engine: Engine, tmp_path: Path) -> None:
    fill(engine)
    before = in_tables(engine)
    with Session(engine) as session:
        with before_statement(engine, "WITH candidate AS", lambda: (prune_everything(session, CHAINS), None)[1]):
            archive(engine, tmp_path, before=MONTH, on_progress=at(Step.DELETING, session.rollback))
        session.rollback()
    archive(engine, tmp_path, before=MONTH)
    assert_archived(before, tmp_path, engine)


def test_a_plan_that_commits_while_retention_works_keeps_its_chains(engine: Engine, tmp_path: Path) -> None:
    """Retention reads its page, the archiver plans and writes, and only then does retention lock the chains."""
    fill(engine)
    before = in_tables(engine)

    def archive_until_written() -> None:
        def kill() -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            archive(engine, tmp_path, before=MONTH, on_progress=at(Step.WRITTEN, kill))

    with before_statement(engine, "SELECT job.id, job.type_name", archive_until_written):
        prune_committed(engine)()
    archive(engine, tmp_path, before=MONTH)
    assert_archived(before, tmp_path, engine)


@pytest.mark.parametrize("step", [Step.PLANNED, Step.WRITTEN, Step.DELETING], ids=lambda step: step.value)
def test_retention_of_dead_letters_leaves_those_of_a_run_to_the_archiver(engine: Engine, tmp_path: Path, step: Step) -> None:
    fill(engine)
    execute(engine, REDRIVEN)
    before = in_tables(engine)
    archive(engine, tmp_path, before=MONTH, on_progress=at(step, prune_committed(engine, DEAD_LETTERS)))
    assert_archived(before, tmp_path, engine)
    assert len(in_archive(tmp_path)["dead_letters"]) == 2


def test_a_dead_letter_that_retention_is_deleting_holds_its_chain_back(engine: Engine, tmp_path: Path) -> None:
    fill(engine)
    execute(engine, REDRIVEN)
    with Session(engine) as session:
        with before_statement(engine, "WITH candidate AS", lambda: (prune_everything(session, DEAD_LETTERS), None)[1]):
            archive(engine, tmp_path, before=MONTH, on_progress=at(Step.DELETING, session.commit))
        session.commit()
    assert chains_in(in_archive(tmp_path)) == ARCHIVED - {chain(1)}
    archive(engine, tmp_path, before=MONTH)
    assert chains_in(in_archive(tmp_path)) == ARCHIVED
    assert {row["job_id"] for row in in_archive(tmp_path)["dead_letters"].values()} == {chain(6)}


@pytest.mark.parametrize("step", STEPS[:4], ids=lambda step: step.value)
def test_an_explicit_deletion_removes_the_chain_from_the_files_too(engine: Engine, tmp_path: Path, step: Step) -> None:
    fill(engine)
    before = in_tables(engine)
    deletions: list[Any] = []

    def delete() -> None:
        deletions.append(call(engine, delete_chains, [UUID(chain(1))]).ids)

    archive(engine, tmp_path, before=MONTH, options=SMALL, on_progress=at(step, delete))
    assert len(deletions) == 1
    assert_archived(before, tmp_path, engine, ARCHIVED - {chain(1)})
    assert chain(1) not in chains_in(in_tables(engine))


def test_retention_deletes_a_redriven_chain_after_the_run(engine: Engine, tmp_path: Path) -> None:
    fill(engine)

    def redrive_and_complete() -> None:
        execute(engine, f"UPDATE job_queue SET status = 'pending' WHERE id = '{chain(7)}'")
        execute(
            engine,
            "UPDATE job SET status = 'cancelled', completed_at = now() - interval '36 days', "
            f"chain_completed_at = now() - interval '36 days' WHERE id = '{chain(7)}'",
        )
        prune_committed(engine)()

    options = ArchiveOptions(include_dead=True)
    archive(engine, tmp_path, before=MONTH, options=options, on_progress=at(Step.WRITTEN, redrive_and_complete))
    assert chain(7) in chains_in(in_tables(engine))
    assert chain(7) not in chains_in(in_archive(tmp_path))
    together(in_archive(tmp_path), in_tables(engine))
    prune_committed(engine)()
    assert chain(7) not in chains_in(in_tables(engine))
    assert states(engine) == ["done"]


def test_a_dry_run_of_retention_counts_no_chain_of_a_run(engine: Engine, tmp_path: Path) -> None:
    fill(engine)
    counts: list[tuple[int, int]] = []

    def dry_run() -> None:
        with Session(engine) as session:
            pruned = prune(session, CHAINS, dry_run=True)
            counts.append((sum(pruned.chains.values()), pruned.kept))

    archive(engine, tmp_path, before=MONTH, on_progress=at(Step.PLANNED, dry_run))
    assert counts == [(1, 7)]  # the dead chain, which is not archived
    assert [row.state for row in archive_runs(engine)] == ["done"]


def test_retention_in_a_database_without_the_archive(engine: Engine) -> None:
    fill(engine)
    write(engine, "ALTER TABLE archive_chain RENAME TO archive_chain_elsewhere")
    try:
        prune_committed(engine)()
    finally:
        write(engine, "ALTER TABLE archive_chain_elsewhere RENAME TO archive_chain")
    assert not chains_in(in_tables(engine)) & (ARCHIVED - {chain(7)})

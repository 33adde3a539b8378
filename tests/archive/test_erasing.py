"""Erasure of chains from an archive: all rows of the chains that are meant, and no other row."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, text

from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.pipeline.archive import ArchiveOptions, Progress, Step, archive, archive_runs, erase, read, verifying
from sa_jobqueue.pipeline.archive.errors import ArchiveError
from tests.archive.sample_data import Rows, chain, fill, in_archive, in_tables
from tests.fixtures.commands import Run

pytestmark = pytest.mark.parametrize("database_url", ["newest"], indirect=True)

AGE = timedelta(days=30)


@pytest.fixture
def path(engine: Engine, tmp_path: Path) -> Path:
    """Give an archive of chains 1 to 8 but 7, in several runs."""
    fill(engine)
    archive(engine, tmp_path / "archive", before=AGE, options=ArchiveOptions(max_jobs=4))
    return tmp_path / "archive"


def without(rows: Rows, *numbers: int) -> Rows:
    """Return the rows of an archive without those of chains."""
    chains = {chain(number) for number in numbers}
    job_ids = {key[0] for key, job in rows["jobs"].items() if job["chain_id"] in chains}
    return {
        name: {key: row for key, row in of_dataset.items() if row["id" if name == "jobs" else "job_id"] not in job_ids}
        for name, of_dataset in rows.items()
    }


@pytest.mark.parametrize(
    ("where", "chain_ids", "erased"),
    [
        ({"fairness_key": "tenant 6"}, [], {6}),
        ({"ordering_key": "customer 8"}, [], {8}),
        ({"input.n": "5"}, [], {5}),
        ({"type_name": "later"}, [], {2}),  # a continuation's
        ({"type_name": "type0", "input.n": "5"}, [], set()),
        ({"type_name": "type1", "input.n": "5"}, [], {5}),
        ({"input.n": "5"}, [chain(2), chain(9)], {2, 5}),  # 9 is in the tables
        ({"input.n.m": "5"}, [], set()),
        ({"input.none": "null"}, [], set()),
        ({"deduplication_key": "null"}, [], set()),
        ({"input.empty": ""}, [], {2, 4, 5, 6, 8}),
        ({}, [chain(number) for number in range(1, 9)], {1, 2, 3, 4, 5, 6, 8}),
    ],
)
def test_exactly_the_chains_meant_are_erased_with_all_their_rows(
    where: dict[str, str], chain_ids: list[str], erased: set[int], path: Path, engine: Engine
) -> None:
    before, tables = in_archive(path), in_tables(engine)
    tried = erase(engine, path, where=where, chain_ids=chain_ids, dry_run=True)
    assert in_archive(path) == before
    result = erase(engine, path, where=where, chain_ids=chain_ids)
    after = in_archive(path)
    assert result == tried
    assert result.chain_ids == tuple(sorted(map(chain, erased)))
    assert after == without(before, *erased)
    assert {name: len(before[name]) - len(after[name]) for name in after} == {name: getattr(result, name) for name in after}
    assert in_tables(engine) == tables
    assert erase(engine, path, where=where, chain_ids=chain_ids).chain_ids == ()
    assert not list(path.rglob("_rewriting*"))


def test_jobs_whose_values_a_codec_has_encoded_are_counted(engine: Engine, tmp_path: Path, run: Run) -> None:
    fill(engine)
    encoded = "jsonb_build_object('sa_jobqueue.codec', 'encrypted', 'data', 'x')"
    escaped = "jsonb_build_object('sa_jobqueue.codec', NULL, 'data', input)"
    with engine.begin() as connection:
        for numbers, value in (([2, 5, 8, 10], encoded), ([6], escaped)):
            change = text(f"UPDATE job SET input = {value} WHERE id = ANY(CAST(CAST(:ids AS text[]) AS uuid[]))")
            connection.execute(change, {"ids": [*map(chain, numbers)]})
    archive(engine, tmp_path, before=AGE)
    assert erase(engine, tmp_path, where={"fairness_key": "tenant 6"}, dry_run=True).unsearched_jobs == 0
    assert erase(engine, tmp_path, where={"output.n": "6"}, dry_run=True).unsearched_jobs == 0
    for type_name, jobs in (("type0", 2), ("type1", 1), ("later", 1), ("type2", 0)):
        where = {"type_name": type_name, "input.n": "6"}
        assert erase(engine, tmp_path, where=where, dry_run=True).unsearched_jobs == jobs
    erased = erase(engine, tmp_path, where={"input.n": "6"}, chain_ids=[chain(5)], dry_run=True)
    assert (erased.chain_ids, erased.unsearched_jobs) == ((chain(5), chain(6)), 3)
    printed = run("archive", "erase", "--to", tmp_path, "--where", "input.n=6", "--yes").stdout
    assert "1 chain erased" in printed
    assert "Not searched: 4 jobs of other chains, whose values a codec has encoded." in " ".join(printed.split())


def test_an_erasure_that_was_interrupted_anywhere_is_completed_by_the_next(
    path: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    class KilledError(Exception):
        pass

    before = in_archive(path)
    rewrite, rewrites_left = verifying._rewrite, 0

    def rewrite_and_fail(*arguments: Any) -> None:
        nonlocal rewrites_left
        rewrite(*arguments)
        rewrites_left -= 1
        if rewrites_left == 0:
            raise KilledError

    monkeypatch.setattr(verifying, "_rewrite", rewrite_and_fail)
    for place in (1, 3, 5):
        rewrites_left = place
        with pytest.raises(KilledError):
            erase(engine, path, chain_ids=[chain(2), chain(6)])
    erase(engine, path, chain_ids=[chain(2), chain(6)])
    assert in_archive(path) == without(before, 2, 6)


def test_an_erasure_waits_for_an_unfinished_run_and_names_wrong_conditions(engine: Engine, tmp_path: Path) -> None:
    fill(engine)

    class DiskFullError(Exception):
        pass

    def fail(progress: Progress) -> None:
        if progress.step is Step.WRITTEN:
            raise DiskFullError

    with pytest.raises(DiskFullError):
        archive(engine, tmp_path, before=AGE, on_progress=fail)
    (run,) = archive_runs(engine)
    with pytest.raises(ArchiveError, match=f"run {run.id} is unfinished: archive to .*; nothing was erased"):
        erase(engine, tmp_path, chain_ids=[chain(2)])
    archive(engine, tmp_path, before=AGE)
    assert erase(engine, tmp_path, chain_ids=[chain(2)]).jobs == 3
    with pytest.raises(InvalidOptionError, match="where"):
        erase(engine, tmp_path)
    for name in ("customer", "input", "fairness_key.a", "priority"):
        with pytest.raises(InvalidOptionError, match=rf"has no column '{name}': use input\.FIELD, .*fairness_key"):
            erase(engine, tmp_path, where={name: "1"})


def test_the_command_shows_and_erases_the_chains_of_one_person(path: Path, run: Run) -> None:
    def erased(*arguments: object, **options: Any) -> str:
        return run("archive", "erase", *arguments, **options).output

    person = ("--to", path, "--where", "fairness_key=tenant 6")
    assert "1 chain would be erased" in erased(*person, "--dry-run")
    erased(*person, status=1, input="n\n")
    assert read(path).num_rows == 9
    assert json.loads(erased(*person, "--yes", "--json")) == {
        **{"chain_ids": [chain(6)], "jobs": 1, "attempts": 2, "dead_letters": 1, "blockers": 0},
        "unsearched_jobs": 0,
    }
    assert read(path).num_rows == 8
    assert "0 chains erased" in erased(*person)
    assert "1 chain erased" in erased("--to", path, "--chain", chain(8), input="y\n")
    assert "must be COLUMN=VALUE" in erased("--to", path, "--where", "x", status=2)
    assert "--where or --chain are required" in erased("--to", path, status=2)
    assert "has no column 'x'" in erased("--to", path, "--where", "x=1", status=2)

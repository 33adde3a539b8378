"""Erasure of chains from an archive: those of one person, say, who asks for it."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow.compute as pc
from sqlalchemy import URL
from sqlalchemy import Engine as Database

from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.models import Job, JobClass
from sa_jobqueue.payloads import CODEC_MARK
from sa_jobqueue.pipeline.archive.connection import opened
from sa_jobqueue.pipeline.archive.errors import ArchiveError
from sa_jobqueue.pipeline.archive.locations import File, Location
from sa_jobqueue.pipeline.archive.options import ArchiveOptions
from sa_jobqueue.pipeline.archive.verifying import read_batches, remove_chains, rows_of_chains
from sa_jobqueue.pipeline.history import DATASETS, JOBS, Kind
from sa_jobqueue.pipeline.statements import archiving

_SEARCHED: Final = tuple(column.name for column in JOBS.columns if column.kind in {Kind.TEXT, Kind.JSON})
_JSON: Final = frozenset(column.name for column in JOBS.columns if column.kind is Kind.JSON)


@dataclass(frozen=True, slots=True)
class ErasedChains:
    """Chains that `erase` found in the files of an archive, and the number of their rows."""

    chain_ids: tuple[str, ...]
    """Ids of the chains, sorted."""
    jobs: int = 0
    """Rows of `jobs`."""
    attempts: int = 0
    """Rows of `attempts`."""
    dead_letters: int = 0
    """Rows of `dead_letters`."""
    blockers: int = 0
    """Rows of `blockers`."""
    unsearched_jobs: int = 0
    """Jobs of other chains that may be meant as well: a codec has encoded a column that `where` names, and its other values
    are equal."""


def erase(
    database: Database | URL | str,
    path: str | os.PathLike[str],
    *,
    where: Mapping[str, str] | None = None,
    chain_ids: Iterable[object] = (),
    dry_run: bool = False,
    model: JobClass = Job,
) -> ErasedChains:
    """Erase chains from the files of an archive, with all their jobs, attempts, dead letters and blockers.

    A chain is erased if its id is given, or if one of its jobs has all the values of `where`. If the call is interrupted,
    call it again. Rows in the tables, copies of the files and older versions that a store keeps are not erased.

    `database`: the one that was archived, as in `archive`. `path`: the archive.
    `where`: values by column of `jobs`, such as `{"fairness_key": "customer-7"}`, or by the path of a field in a JSON
    column, such as `{"input.customer.id": "7"}`; a value that is not a string is compared with its JSON text, a null is
    never equal. A column that a codec has encoded is not searched; the result counts such jobs. `chain_ids`: ids of chains;
    those that the archive does not have are passed over.
    `dry_run`: change nothing, and return what would be erased.
    Changes: replaces the files that have such chains.
    Locks: the advisory lock of the archive, for as long as it takes.
    Raises: InvalidOptionError; ArchiveError while a run is unfinished; ArchiveBusyError; ArchivePathError,
    DatabaseUnavailableError, SchemaError.
    """
    requested_ids = frozenset(map(str, chain_ids))
    if not where and not requested_ids:
        raise InvalidOptionError("where", "is required, or chain_ids")
    for name in where or ():
        column, _, field = name.partition(".")
        if column not in _SEARCHED or bool(field) != (column in _JSON):
            texts = ", ".join(name for name in _SEARCHED if name not in _JSON)
            fields = ", ".join(f"{name}.FIELD" for name in _SEARCHED if name in _JSON)
            raise InvalidOptionError("where", f"has no column {name!r}: use {fields}, or {texts}")
    location = Location.of(path)
    with opened(database, model, ArchiveOptions()) as connection:
        with connection.begin():
            unfinished = connection.execute(archiving.runs(model, unfinished=True), {"limit": 1}).all()
        if unfinished:
            reason = f"archive to {unfinished[0].path} to finish it, or give it up"
            raise ArchiveError(f"run {unfinished[0].id} is unfinished: {reason}; nothing was erased")
        with location.usable():
            files = [file for dataset in DATASETS.values() for file in location.all_files(dataset)]
            erased_ids, unsearched_jobs = _chosen(location, files, where or {}, requested_ids)
            erased = replace(_counted(location, files, erased_ids), unsearched_jobs=unsearched_jobs)
            if not dry_run:
                remove_chains(location, files, erased_ids, lambda: None)
    return erased


def _chosen(
    location: Location, files: Iterable[File], where: Mapping[str, str], chain_ids: frozenset[str]
) -> tuple[frozenset[str], int]:
    """Return the ids of the chains that are among `chain_ids`, or have a job with the values of `where`.

    Also return how many jobs of other chains may have these values, in a column that a codec has encoded.
    """
    columns = ["chain_id", *dict.fromkeys(name.partition(".")[0] for name in where)]
    erased_ids = set(chain_ids)
    archived_ids: set[str] = set()
    unsearched_jobs: Counter[str] = Counter()
    for file in files:
        if file.dataset is JOBS:
            for batch in read_batches(location, file, columns):
                for job in batch.to_pylist():
                    archived_ids.add(job["chain_id"])
                    has_values = _has(job, where) if where else False
                    if has_values:
                        erased_ids.add(job["chain_id"])
                    elif has_values is None:
                        unsearched_jobs[job["chain_id"]] += 1
    return frozenset(erased_ids & archived_ids), sum(
        jobs for chain_id, jobs in unsearched_jobs.items() if chain_id not in erased_ids
    )


def _has(job: Mapping[str, Any], where: Mapping[str, str]) -> bool | None:
    """Return whether a job has all values; None if it depends on a column that a codec has encoded."""
    is_known = True
    for name, text in where.items():
        column, _, path = name.partition(".")
        value = job[column]
        if path and value is not None:
            document = json.loads(value, parse_float=str)
            if isinstance(document, dict) and document.keys() == {CODEC_MARK, "data"}:
                if document[CODEC_MARK] is not None:
                    is_known = False
                    continue
                document = document["data"]
            value = _field(document, path)
        if value is None or (value if isinstance(value, str) else json.dumps(value)) != text:
            return False
    return is_known or None


def _field(document: Any, path: str) -> Any:
    for key in path.split("."):
        document = document.get(key) if isinstance(document, dict) else None
    return document


def _counted(location: Location, files: Iterable[File], chain_ids: frozenset[str]) -> ErasedChains:
    counts = dict.fromkeys(DATASETS, 0)
    for file, column, values in rows_of_chains(location, files, chain_ids):
        for batch in read_batches(location, file, [column]):
            counts[file.dataset.name] += pc.sum(pc.is_in(batch[column], values)).as_py() or 0
    return ErasedChains(tuple(sorted(chain_ids)), **counts)

"""Rows on their way into an archive: read with a checksum of each, compared with the written rows, and deleted."""

from __future__ import annotations

from typing import Any, Final
from typing import cast as typed

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import BIT, TIMESTAMP

from sa_jobqueue.pipeline.history import ATTEMPTS, BLOCKERS, DATASETS, DEAD_LETTERS, JOBS, Dataset
from sa_jobqueue.pipeline.statements import history
from sa_jobqueue.statements._parts import Tables, bound, statement
from sa_jobqueue.statements.retention import is_taken

SEPARATOR: Final = "\x1f"
NULL: Final = "\x1e"
"""Separator of columns in the text that is checksummed, and placeholder for null. JSON text cannot contain it."""

_ORDER: Final = {JOBS.name: "chain_index", ATTEMPTS.name: "attempt", DEAD_LETTERS.name: "id", BLOCKERS.name: "index"}


@bound
def read(t: Tables, dataset: Dataset, run_id: Any, part: int) -> sa.Select[Any]:
    """Return the rows of one part of a run, as COPY writes them for the archive's files.

    Shape: `completed_on`, the dataset's published columns, and `checksum`; by `completed_on` and chain. Locks: none.
    Index: `ix_archive_chain_part`, `uq_job_chain`, the primary key; `pk_job_attempt`, `ix_dead_letter_job`,
    `pk_job_blocker`.
    """
    job, chain = t.job, t.archive_chain
    of_part = (chain.c.run_id == sa.bindparam("run_id", run_id, type_=sa.Uuid()), chain.c.part == sa.bindparam("part", part))
    root = sa.select(chain.c.completed_on, chain.c.chain_id, chain.c.chain_id.label("id")).where(*of_part)
    continuations = sa.select(chain.c.completed_on, chain.c.chain_id, job.c.id)
    continuations = continuations.select_from(chain.join(job, job.c.root_id == chain.c.chain_id)).where(*of_part)
    member = sa.union_all(root, continuations).subquery("member")
    source = history.source(t, dataset)
    columns = _columns(t, dataset)
    return (
        sa.select(member.c.completed_on, *columns, _checksum(t, dataset).label("checksum"))
        .select_from(
            member.join(source, source.c[dataset.key[0] if dataset is not DEAD_LETTERS else "job_id"] == member.c.id)
        )
        .order_by(member.c.completed_on, member.c.chain_id, source.c[_ORDER[dataset.name]])
    )


@statement
def lock_ended_roots(t: Tables) -> sa.Select[Any]:
    """Lock the chains that have ended and that no job waits for; skip those that another transaction holds.

    Parameters: `ids`. Shape: `(id,)`. Locks: the roots, in the order of their ids, also against foreign keys to them, so
    that no job starts to wait for one; held ones are skipped. Until the transaction ends. Index: the primary key.
    """
    return (
        sa.select(t.job.c.id)
        .where(
            t.job.c.id == sa.any_(t.ids("ids")),
            t.job.c.root_id.is_(None),
            t.job.c.chain_completed_at.is_not(None),
            ~t.job.c.has_waiters,
            is_taken(t, t.job),
        )
        .order_by(t.job.c.id)
        .with_for_update(skip_locked=True)
    )


@statement
def lock_dead_letters(t: Tables) -> sa.Select[Any]:
    """Lock the dead letters of jobs. Parameters: `job_ids`. Shape: `(id,)`.

    Locks: the dead letters, in the order of their ids; waits for held ones. Obliges: the jobs are locked: a transaction that
    changes a dead letter and its job locks the job first. Index: `ix_dead_letter_job`.
    """
    of_jobs = t.dead_letter.c.job_id == sa.any_(t.ids("job_ids"))
    return sa.select(t.dead_letter.c.id).where(of_jobs).order_by(t.dead_letter.c.id).with_for_update()


@statement
def fingerprints(t: Tables) -> sa.Select[Any]:
    """Compute a checksum per chain over every published column of every row that belongs to it.

    Parameters: `ids`, of roots. Shape: `(chain_id, rows, checksum)`, unordered; rows are jobs, attempts, dead letters,
    blockers.
    Obliges: the chains' jobs and dead letters are locked, so that the checksum covers exactly what will be deleted.
    Index: the primary key and `uq_job_chain`; `pk_job_attempt`, `ix_dead_letter_job`, `pk_job_blocker`.
    """
    ids = t.ids("ids")
    root = sa.select(t.job.c.id.label("chain_id"), t.job.c.id).where(t.job.c.id == sa.any_(ids))
    continuations = sa.select(t.job.c.root_id.label("chain_id"), t.job.c.id).where(t.job.c.root_id == sa.any_(ids))
    member = sa.union_all(root, continuations).cte("member")
    each = []
    for dataset in DATASETS.values():
        source = history.source(t, dataset)
        key = source.c.job_id if dataset is not JOBS else source.c.id
        summed = sa.select(member.c.chain_id, _checksum(t, dataset, is_exact=True).label("checksum"))
        each.append(summed.select_from(member.join(source, key == member.c.id)))
    rows = sa.union_all(*each).subquery("rows")
    return sa.select(
        rows.c.chain_id, sa.func.count().label("rows"), sa.func.sum(rows.c.checksum).label("checksum")
    ).group_by(rows.c.chain_id)


@statement
def delete_dead_letters(t: Tables) -> sa.Delete:
    """Delete the dead letters of jobs. Parameters: `job_ids`. Obliges: they are locked. Index: `ix_dead_letter_job`."""
    return sa.delete(t.dead_letter).where(t.dead_letter.c.job_id == sa.any_(t.ids("job_ids")))


@statement
def forget(t: Tables) -> sa.Delete:
    """Record that chains of a run were deleted from the tables. Parameters: `run_id`, `ids`. Index: `pk_archive_chain`."""
    return sa.delete(t.archive_chain).where(
        t.archive_chain.c.run_id == sa.bindparam("run_id", type_=sa.Uuid()),
        t.archive_chain.c.chain_id == sa.any_(t.ids("ids")),
    )


@statement
def remaining(t: Tables) -> sa.Select[Any]:
    """Name the chains of a run that its archiver has not deleted.

    Parameters: `run_id`. Shape: `(chain_id,)`, the last first: what waits for a chain is mostly younger.
    Index: `ix_archive_chain_part`.
    """
    of_run = t.archive_chain.c.run_id == sa.bindparam("run_id", type_=sa.Uuid())
    return sa.select(t.archive_chain.c.chain_id).where(of_run).order_by(t.archive_chain.c.chain_id.desc())


def _columns(t: Tables, dataset: Dataset) -> list[Any]:
    return list(history.rows(t.model, dataset).inner_columns)


def _checksum(t: Tables, dataset: Dataset, *, is_exact: bool = False) -> sa.ColumnElement[int]:
    """Return the first 64 bits of the SHA-256 of a row's columns as text, as a signed number.

    `is_exact`: of the columns as they are in the table, of which files may lack an instant: then the row differs, and stays.

    Not MD5: it is refused where the server's cryptography is FIPS 140's, and the database's own hashes differ from
    release to release.
    """
    separator, nothing = (sa.literal_column(f"chr({ord(sign)})", sa.Text) for sign in (SEPARATOR, NULL))
    exact_source = history.source(t, dataset) if is_exact else None
    texts = [sa.func.coalesce(_summed(column, exact_source), nothing) for column in _columns(t, dataset)]
    digest = sa.func.sha256(sa.func.convert_to(sa.func.concat_ws(separator, *texts), sa.literal_column("'UTF8'")))
    first = sa.func.encode(
        sa.func.substr(digest, sa.literal_column("1"), sa.literal_column("8")), sa.literal_column("'hex'")
    )
    return typed(
        "sa.ColumnElement[int]", sa.cast(sa.cast(sa.literal_column("'x'", sa.Text).concat(first), BIT(64)), sa.BigInteger)
    )


def _summed(label: Any, exact_source: sa.Table | None) -> sa.ColumnElement[str]:
    """Return a column as the text that is summed: instants and durations in microseconds."""
    column = label.element
    if isinstance(column.type, TIMESTAMP):
        micros = sa.cast(
            sa.cast(sa.extract("epoch", column) * sa.literal_column("1000000", sa.Integer), sa.BigInteger), sa.Text
        )
        return micros if exact_source is None else sa.func.coalesce(micros, sa.cast(exact_source.c[label.name], sa.Text))
    if label.name == "timeout_seconds":
        # Of the exact number, not of the double that readers get.
        return sa.cast(sa.cast(column.clause * sa.literal_column("1000000", sa.Integer), sa.BigInteger), sa.Text)
    if isinstance(column.type, sa.Boolean):
        return sa.cast(column, sa.Text)
    return column if isinstance(column.type, sa.Text) else sa.cast(column, sa.Text)

"""Bulk writes: rows that many processes have staged become jobs in one transaction, exactly once."""

from __future__ import annotations

import graphlib
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Final, Literal

from sqlalchemy import Row
from sqlalchemy.orm import Session

from sa_jobqueue.errors import ConflictError, InvalidJobError, JobQueueError, NotFoundError, not_chains
from sa_jobqueue.models import Job, JobClass
from sa_jobqueue.operations.transactions import queue_connection, translated
from sa_jobqueue.operations.wakeups import notify_workers
from sa_jobqueue.pipeline.statements import bulk
from sa_jobqueue.policies.fairness import ANY_QUEUE, QueueKey
from sa_jobqueue.statements import blockers, chains
from sa_jobqueue.types import JobStatus

LEFT_OVER: Final = timedelta(hours=24)
"""Rows staged longer ago belong to a write that died. One that takes as long refuses to commit."""
HASHES_KEPT: Final = timedelta(hours=24)
"""How long the ledger has the hashes of the rows of a write."""
MOST_HASHES: Final = 1_000_000
"""Rows of a write whose hashes the ledger has: eight megabytes."""
_MOST_IDS: Final = 10


class RepeatedWriteError(JobQueueError):
    """A write with this id, or this batch of a stream, has committed with other rows; nothing was written.

    Some of the rows are not among those that it committed, or its hashes are not kept, and the rows are not all the same.
    All values but ids, blockers, times and traces are compared.
    `committed` and `staged` are the numbers of rows of the write `write_id`, batch `sequence`, then and now. `is_stream`:
    whether the message is for a batch of a stream.
    """

    def __init__(self, write_id: str, sequence: int, committed: int, staged: int, *, is_stream: bool = False) -> None:
        self.write_id = write_id
        self.sequence = sequence
        self.committed = committed
        self.staged = staged
        now = f"this time there are {staged:,}" if staged != committed else f"this time there are {staged:,} others"
        fact = f"has committed {committed:,} rows, {now}; nothing was written"
        super().__init__(
            f"query {write_id}, batch {sequence}, {fact}. If the checkpoint was set back, or copied too early, restore the "
            "one that belongs to the queue. If rows of the source were changed or deleted since the batch was committed, or "
            "a column is random, start the query once with onRepeat=skip: the committed rows of the batch stay, and the "
            "query goes on behind it"
            if is_stream
            else f"write {write_id} {fact}: give missing rows another writeId, or pass onRepeat=skip to leave the committed "
            "write as it is"
        )


class StagedRowsLostError(JobQueueError):
    """Rows that tasks have staged no longer exist, so nothing was enqueued. Write again.

    The staging table is unlogged: a server crash empties it. Rows are also deleted after a day. `expected` and `actual` are
    the numbers of rows of the write `write_id`.
    """

    def __init__(self, write_id: str, expected: int, actual: int) -> None:
        self.write_id = write_id
        self.expected = expected
        self.actual = actual
        super().__init__(
            f"write {write_id}: {expected:,} rows were staged and {actual:,} are there: the server crashed since, or it was"
            " long ago; nothing was enqueued, write again"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteResult:
    """Result of a bulk write, as stored in the ledger: `staged == enqueued + duplicates + rejected`."""

    write_id: str
    """Id given by the caller, or a random one; for a stream, the id of its query."""
    sequence: int = 0
    """The batch of a stream; 0 for a batch write."""
    staged: int
    """Rows that arrived."""
    enqueued: int
    """Number of rows that became jobs."""
    duplicates: int
    """Rows whose deduplication key an open chain had, of this write or another."""
    rejected: int
    """Rows that are in `job_bulk_reject` now, with the reason."""
    fingerprint: int = field(default=0, compare=False)
    """Sum of the hashes of the rows, without ids and times."""
    repeated: bool = field(default=False, compare=False)
    """Whether an earlier write with this id had committed, so that this one enqueued nothing."""


def commit_write(
    session: Session,
    *,
    write_id: str,
    sequence: int = 0,
    tasks: Mapping[int, int],
    fingerprint: int = 0,
    row_hashes: bytes | None = None,
    on_duplicate: Literal["skip", "fail"] = "skip",
    on_repeat: Literal["skip", "check"] = "skip",
    on_taken_id: Literal["fail", "reject"] = "fail",
    written_by: str | None = None,
    model: JobClass = Job,
) -> WriteResult:
    """Create the jobs of staged rows; if this write has committed before, only delete the staged rows.

    `tasks`: number of rows that each task has staged, by `task_id`; rows of other tasks are ignored. A write without rows
    leaves no entry in the ledger, so that the rows can still be written later. `fingerprint`: sum of the hashes of the rows.
    `row_hashes`: these hashes, eight bytes each; None for a write of more than `MOST_HASHES` rows.
    `on_repeat`: "check" fails if the write has committed before and a row is not among those that it committed then.
    `on_taken_id`: "reject" rejects rows whose id exists, and all but one of those with the same id.
    `session`: READ COMMITTED, with no statement in its transaction yet.
    Changes: inserts a row of the ledger, one for each job, blocker and rejected row; deletes the staged rows of this write,
    and all that are older than a day.
    Locks: first the ledger's row: concurrent commits of the same write wait, and then do nothing. Existing chains that rows
    wait for, in the order of their ids. It waits for other transactions with equal deduplication keys.
    Raises: RepeatedWriteError; StagedRowsLostError; ConflictError for an id that is taken, and with `on_duplicate="fail"`
    for a key; NotFoundError and InvalidJobError for blockers. Nothing is written then.
    """
    key = {"write_id": write_id, "sequence": sequence}
    staged = key | {"task_ids": list(tasks)}
    session.execute(bulk.guard())
    arrived = sum(tasks.values())
    if not arrived or session.execute(bulk.take_write(model), key | {"written_by": written_by}).first() is None:
        entry = find_write(session, write_id, sequence=sequence, model=model)
        if entry is None and arrived:  # deleted between two statements
            raise StagedRowsLostError(write_id, 0, 0)
        are_same = not arrived or entry is None or (entry.staged, entry.fingerprint) == (arrived, fingerprint)
        if entry and on_repeat == "check" and not are_same and not _are_among(session, key, row_hashes, model):
            raise RepeatedWriteError(write_id, sequence, entry.staged, arrived)
        session.execute(bulk.clear_stage(model), key)
        if entry is None:
            return WriteResult(write_id=write_id, sequence=sequence, staged=0, enqueued=0, duplicates=0, rejected=0)
        return replace(entry, repeated=True)
    while True:
        counted = session.execute(bulk.count_staged(model), staged).all()
        rows, rejected, keyed, waiting = (sum(row[place] for row in counted) for place in (1, 2, 3, 4))
        if rows != arrived:
            raise StagedRowsLostError(write_id, arrived, rows)
        modes = {"keyed": bool(keyed), "skip": on_duplicate == "skip"}
        try:
            with session.begin_nested() if on_taken_id == "reject" else nullcontext():
                enqueued = _enqueue(session, staged, model, modes=modes, waiting=bool(waiting))
            break
        except ConflictError:
            # Looked for only now, because a search of the queue for each row would make every other write slower.
            if on_taken_id == "fail" or not _reject_taken_ids(session, staged, model):
                raise
    if rejected:
        session.execute(bulk.reject_staged(model), staged)
    numbers = {"staged": rows, "enqueued": enqueued, "duplicates": rows - rejected - enqueued, "rejected": rejected}
    numbers["fingerprint"] = fingerprint
    account = numbers | {"row_hashes": row_hashes, "of_write_id": write_id, "of_sequence": sequence}
    session.execute(bulk.account(model), account)
    session.execute(bulk.clear_stage(model), key)
    if sequence % 100 == 0:  # a stream's small batches need not each look through the whole table
        session.execute(bulk.clear_left_over(model), {"age": LEFT_OVER})
        session.execute(bulk.forget_hashes(model), {"age": HASHES_KEPT})
    if enqueued:
        notified = {QueueKey(row.queue, row.fairness_key or "").text if row.queue else ANY_QUEUE for row in counted}
        for queue_key in sorted(notified):
            notify_workers(session, queue_connection(session, model), model, queue_key)
    return WriteResult(write_id=write_id, sequence=sequence, **numbers)


def _are_among(session: Session, key: dict[str, Any], row_hashes: bytes | None, model: JobClass) -> bool:
    """Return whether the ledger proves that all rows of a repeated write are among those that it committed."""
    committed = session.scalars(bulk.row_hashes(model), key).one_or_none()
    if row_hashes is None or committed is None:
        return False
    return Counter(array("Q", row_hashes)) <= Counter(array("Q", committed))


def _enqueue(session: Session, staged: dict[str, Any], model: JobClass, *, modes: dict[str, bool], waiting: bool) -> int:
    ended = _lock_chains(session, staged, model) if waiting else {}
    parameters = staged | {"ended_ids": list(ended), "completed": list(ended.values())}
    try:
        with translated():
            return int(session.scalars(bulk.enqueue_staged(model, **modes), parameters).one())
    except ConflictError as error:
        raise _explained(error) from error


def _reject_taken_ids(session: Session, staged: dict[str, Any], model: JobClass) -> int:
    statement = bulk.reject_taken_ids(model).execution_options(preserve_rowcount=True, synchronize_session=False)
    result: Any = session.execute(statement, {f"of_{name}": value for name, value in staged.items()})
    return int(result.rowcount)


def _explained(error: ConflictError) -> ConflictError:
    diagnosis = getattr(getattr(error.__cause__, "orig", None), "diag", None)
    detail = getattr(diagnosis, "message_detail", None) or str(error)
    noun = error.constraint
    if noun.endswith("fk_job_blocker_chain"):
        why = "a job waits for a row of this write that was left out, because an open chain has its deduplication key"
    elif noun.endswith("uq_job_deduplication"):
        why = "an open chain has this deduplication key, and onDuplicate is fail"
    else:
        why = "a job has this id already"
    return ConflictError(f"{why}: {detail} Nothing was written", noun)


def _lock_chains(session: Session, staged: dict[str, Any], model: JobClass) -> dict[Any, bool]:
    """Lock the chains waited for that were there; return those that have ended, and whether they completed."""
    _refuse_cycles(session.execute(bulk.circular_edges(model), staged).all())
    ids = sorted(session.scalars(bulk.chains_waited_for(model), staged), key=str)
    if not ids:
        return {}
    chain_by_id = {row.id: row for row in session.execute(chains.lock(model), {"ids": ids})}
    missing = [chain_id for chain_id in ids if chain_id not in chain_by_id]
    if missing:
        more = f" and {len(missing) - _MOST_IDS:,} more" if len(missing) > _MOST_IDS else ""
        reason = f"enqueue it before, or in the same write, where it must not be rejected{more}; nothing was written"
        raise NotFoundError("chain", missing[:_MOST_IDS], field="blockers", reason=reason)
    later = {row.id: row.chain_id for row in chain_by_id.values() if row.chain_id != row.id}
    if later:
        raise not_chains(dict(list(later.items())[:_MOST_IDS]), field="blockers")
    ended = {row.id: row.outcome is JobStatus.COMPLETED for row in chain_by_id.values() if row.ended}
    # A failed chain stays a blocker of the jobs that must fail with it: the unblocking of its waiters ends them.
    unmarked = [row.id for row in chain_by_id.values() if not ended.get(row.id) and not row.has_waiters]
    if unmarked:
        session.execute(blockers.await_chains(model), {"ids": unmarked})
    return ended


def _refuse_cycles(edges: Sequence[Row[Any]]) -> None:
    graph: dict[Any, list[Any]] = {}
    for edge in edges:
        graph.setdefault(edge.job_id, []).append(edge.chain_id)
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        cycle = list(reversed(error.args[1]))
        chain_text = " waits for ".join(map(str, cycle[:_MOST_IDS])) + (" ..." if len(cycle) > _MOST_IDS else "")
        raise InvalidJobError("blockers", f"wait for each other in a cycle: {chain_text}; nothing was written") from None


def find_write(session: Session, write_id: str, *, sequence: int = 0, model: JobClass = Job) -> WriteResult | None:
    """Return the result of a bulk write; None if it has not committed."""
    key: dict[str, Any] = {"write_id": write_id, "sequence": sequence}
    row = session.execute(bulk.find_write(model), key).one_or_none()
    return None if row is None else WriteResult(**key, **row._mapping)


def clear_write(
    session: Session, *, write_id: str, sequence: int = 0, task_ids: tuple[int, int], model: JobClass = Job
) -> None:
    """Delete the staged rows of a writer that gives up, whose tasks have ids from `task_ids[0]` to `task_ids[1]`.

    Rows of other writers of the same write are kept, and so are jobs.
    """
    first, last = task_ids
    parameters = {"write_id": write_id, "sequence": sequence, "first_task_id": first, "last_task_id": last}
    session.execute(bulk.clear_tasks(model), parameters)

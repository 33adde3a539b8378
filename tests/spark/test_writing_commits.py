"""The commit of a bulk write: once however often repeated, whole or not at all, blockers as in a session. No JVM."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Engine, create_engine, make_url, select, text
from sqlalchemy.orm import Session, sessionmaker

from sa_jobqueue import Job, JobStatus
from sa_jobqueue.errors import ConflictError, DatabaseUnavailableError, InvalidJobError, NotFoundError
from sa_jobqueue.ids import uuid7
from sa_jobqueue.models import WaitFor
from sa_jobqueue.operations import cancel_jobs, complete_job
from sa_jobqueue.pipeline.operations.bulk import (
    RepeatedWriteError,
    StagedRowsLostError,
    WriteResult,
    commit_write,
    find_write,
)
from sa_jobqueue.pipeline.spark import staging, writing
from sa_jobqueue.pipeline.spark.connections import connect
from sa_jobqueue.pipeline.spark.staging import BadRowError, Staged, hashes_of, new_writer_number
from sa_jobqueue.pipeline.statements import bulk
from sa_jobqueue.policies.fairness import ANY_QUEUE
from tests.fixtures.database import both_servers
from tests.fixtures.holders import lock_waiters
from tests.fixtures.jobs import Jobs
from tests.fixtures.notifications import Notifications
from tests.fixtures.transactions import call
from tests.fixtures.workers import PATIENCE
from tests.spark.writing import Row, batch, count, write, writer


def stage(url: str, *tasks: Sequence[Row], write_id: str = "nightly") -> dict[int, int]:
    """Stage rows as tasks do; return how many each has staged."""
    names = list(dict.fromkeys(name for task in tasks for row in task for name in row))
    batch_writer = writer(url, names, write_id=write_id, type="t")
    staged = [batch_writer.write(iter([batch(rows)])) for rows in tasks]
    return {part.task_id: part.rows for part in staged}


def commit(session: Session, tasks: dict[int, int], *, write_id: str = "nightly", **options: Any) -> WriteResult:
    """Commit what they staged, up to the transaction's end."""
    return commit_write(session, write_id=write_id, tasks=tasks, **options)


@contextmanager
def running(act: Callable[[], object], engine: Engine, *, until_it_waits: bool = True) -> Iterator[list[BaseException]]:
    """Run something beside the test, once it is seen to wait for a lock; it must have ended when the block ends."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            act()
        except BaseException as error:
            errors.append(error)

    before = lock_waiters(engine)
    thread = threading.Thread(target=run)
    thread.start()
    while until_it_waits and lock_waiters(engine) == before and thread.is_alive():
        pass
    yield errors
    thread.join(timeout=PATIENCE)
    assert not thread.is_alive()


@both_servers
def test_a_repeated_write_waits_for_the_first_and_does_nothing(
    database_url: str, engine: Engine, sessions: sessionmaker[Session], session: Session
) -> None:
    first, second = stage(database_url, [{"priority": 1}] * 3), stage(database_url, [{"priority": 1}] * 3)
    results: list[WriteResult] = []

    def repeat() -> None:
        results.append(call(sessions, commit, second))

    first_commit = commit(session, first)
    with running(repeat, engine) as errors:
        session.commit()
    assert not errors
    assert results == [first_commit] == [find_write(session, "nightly")]
    assert (count(session), count(session, Job.Stage)) == (3, 0)


@both_servers
def test_a_repeated_write_commits_when_the_first_is_rolled_back(
    database_url: str, engine: Engine, sessions: sessionmaker[Session], session: Session
) -> None:
    first, second = stage(database_url, [{"priority": 1}] * 3), stage(database_url, [{"priority": 2}] * 4)
    commit(session, first)

    def repeat() -> None:
        call(sessions, commit, second)

    with running(repeat, engine) as errors:
        session.rollback()
    assert not errors
    assert session.scalars(select(Job.priority)).all() == [2] * 4


@both_servers
def test_in_permissive_mode_a_taken_id_rejects_only_its_row(database_url: str, session: Session) -> None:
    taken_id, twice, fresh = (str(uuid7()) for _ in range(3))
    session.add(Job("before", id=UUID(taken_id)))
    session.commit()
    rows: list[Row] = [
        {"id": taken_id, "input": '{"n": null}', "priority": 1},
        {"id": twice, "input": "1", "blockers": [taken_id]},
        {"id": twice, "input": "2", "blockers": [taken_id]},
        {"id": fresh, "input": "3", "deduplication_key": "k"},
        {"id": str(uuid7()), "input": "4", "deduplication_key": "k"},
        {"input": "5", "blockers": [twice]},
        {"input": "bad"},
    ]
    with pytest.raises(BadRowError):
        write(database_url, rows, type="t")
    with pytest.raises(ConflictError, match="a job has this id already"):
        write(database_url, rows[:-1], type="t")
    assert count(session) == 1
    session.rollback()
    result = write(database_url, rows, type="t", mode="PERMISSIVE")
    assert (result.staged, result.enqueued, result.duplicates, result.rejected) == (7, 3, 1, 3)
    loaded_jobs = session.scalars(select(Job).where(Job.type_name == "t").order_by(Job.input)).all()
    assert [job.input for job in loaded_jobs] == [1, 3, 5]
    assert [job.open_blockers for job in loaded_jobs] == [1, 0, 1]
    rejected = session.scalars(select(Job.Reject).order_by(Job.Reject.row)).all()
    assert [(reject.row, reject.field) for reject in rejected] == [(0, "id"), (2, "id"), (6, "input")]
    assert rejected[0].reason == "is that of another job, in the queue or in this write"
    assert json.loads(rejected[0].record or "") == {"id": taken_id, "type_name": "t", "priority": 1, "input": {"n": None}}
    # A key that is taken is no id: with onDuplicate=fail, it still refuses the write.
    with pytest.raises(ConflictError, match="onDuplicate is fail"):
        write(database_url, [{"deduplication_key": "k"}, {"id": twice}], type="t", mode="PERMISSIVE", onDuplicate="fail")
    session.rollback()
    assert count(session) == 4


@both_servers
def test_concurrent_writes_with_the_same_keys_enqueue_each_once_without_deadlock(
    database_url: str, engine: Engine, sessions: sessionmaker[Session], session: Session
) -> None:
    keys = [{"deduplication_key": key} for key in ("a", "m", "z")]
    forwards = stage(database_url, keys, write_id="forwards")
    backwards = stage(database_url, list(reversed(keys)), write_id="backwards")
    # This session holds the key in the middle, so each of the two has taken others when it comes there.
    session.add(Job("t", deduplication_key="m"))
    session.flush()
    results: dict[str, WriteResult] = {}

    def enqueue(write_id: str, tasks: dict[int, int]) -> Callable[[], None]:
        def act() -> None:
            results[write_id] = call(sessions, commit, tasks, write_id=write_id)

        return act

    with running(enqueue("backwards", backwards), engine) as errors:
        with running(enqueue("forwards", forwards), engine) as more:
            session.rollback()
        assert not errors + more
    assert session.scalars(select(Job.deduplication_key).order_by(Job.deduplication_key)).all() == ["a", "m", "z"]
    assert sorted(result.enqueued for result in results.values()) == [0, 3]
    assert sorted(result.duplicates for result in results.values()) == [0, 3]


@both_servers
def test_the_first_row_of_a_deduplication_key_or_its_open_chain_wins(database_url: str, session: Session) -> None:
    session.add(Job("t", "before", deduplication_key="k0"))
    session.commit()
    rows = [{"deduplication_key": f"k{n % 3}", "input": str(n)} for n in range(9)] + [{"input": "null"}]
    result = write(database_url, rows, type="t")
    assert (result.staged, result.enqueued, result.duplicates) == (10, 3, 7)
    input_by_key = {job.deduplication_key: job.input for job in session.scalars(select(Job))}
    assert input_by_key == {"k0": "before", "k1": 1, "k2": 2, None: None}
    with pytest.raises(ConflictError, match=r"onDuplicate is fail: Key .*\(t, k1\)"):
        write(database_url, [{"deduplication_key": "new"}, {"deduplication_key": "k1"}], type="t", onDuplicate="fail")
    with pytest.raises(ConflictError, match="a job has this id already"):
        write(database_url, [{"id": str(session.scalars(select(Job.id).limit(1)).one())}], type="t")
    session.rollback()
    assert (count(session), count(session, Job.Write)) == (4, 1)


@both_servers
def test_a_write_without_rows_does_not_use_up_its_name(database_url: str, session: Session) -> None:
    late = writer(database_url, ["input"], type="t", writeId="nightly")
    late.commit([late.write(iter([batch([{"input": "1"}]).slice(0, 0)])), late.write(iter(()))])
    assert count(session, Job.Write) == 0
    session.rollback()
    assert write(database_url, [{"input": "1"}] * 5, type="t", writeId="nightly").enqueued == 5
    late.commit([late.write(iter(()))])  # repeated after the rows have come
    session.rollback()
    assert (count(session), count(session, Job.Write)) == (5, 1)


@both_servers
def test_jobs_are_inserted_in_the_order_of_their_ids(database_url: str, session: Session) -> None:
    rows = [{"type_name": "t", "input": "{}"}] * 50
    write(database_url, rows, rows)
    ids = session.scalars(select(Job.id).order_by(text("ctid"))).all()
    assert ids == sorted(ids)


def test_a_committed_write_that_is_repeated_reads_no_row(database_url: str, session: Session) -> None:
    write(database_url, [{"input": "1"}] * 5, type="t", writeId="nightly")

    again = writer(database_url, ["input"], type="t", writeId="nightly", onRepeat="skip")
    again.commit([again.write(1 // 0 for _ in range(1))])  # computing a row would fail
    assert (count(session), count(session, Job.Stage)) == (5, 0)


@both_servers
def test_a_write_repeated_with_other_rows_is_refused(database_url: str, session: Session) -> None:
    rows: list[Row] = [{"input": "1"}] * 5
    write(database_url, rows[:3], type="t", writeId="nightly")
    checked = {"type": "t", "writeId": "nightly"}
    assert write(database_url, rows[:3], **checked).staged == 3
    with pytest.raises(
        RepeatedWriteError, match="has committed 3 rows, this time there are 5; nothing was written"
    ) as raised:
        write(database_url, rows, **checked)
    assert (raised.value.committed, raised.value.staged) == (3, 5)
    with pytest.raises(RepeatedWriteError, match="has committed 3 rows, this time there are 3 others"):
        write(database_url, [*rows[:2], {"input": "2"}], **checked)
    for name, value in (("queue", "other"), ("priority", 3), ("ordering_key", "k")):
        with pytest.raises(RepeatedWriteError, match="this time there are 3 others"):
            write(database_url, [*rows[:2], {"input": "1", name: value}], **checked)
        assert write(database_url, [{"input": "1", name: None}] * 3, **checked).staged == 3  # as without the column
    session.rollback()
    assert (count(session), count(session, Job.Write)) == (3, 1)


@both_servers
@pytest.mark.parametrize("hashes", ["kept", "forgotten", "too many"])
def test_a_repeat_of_some_rows_is_accepted_if_the_ledger_shows_that_all_were_written(
    hashes: str,
    database_url: str,
    session: Session,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    if hashes == "too many":
        monkeypatch.setattr(staging, "MOST_HASHES", 5)
        monkeypatch.setattr(writing, "MOST_HASHES", 5)
    numbers: list[Row] = [{"input": str(number)} for number in (1, 2, 2, 3, 4, 5)]
    options = {"type": "t", "writeId": "nightly"}
    write(database_url, numbers[:2], numbers[2:], **options)
    if hashes == "forgotten":
        session.execute(text("UPDATE job_bulk_write SET row_hashes = NULL"))
        session.commit()
    assert write(database_url, numbers[4:], numbers[:4], **options).staged == 6
    assert write(database_url, [], **options).staged == 6
    assert "repeated with 0 rows of the 6" in caplog.text
    for some in (numbers[:1], numbers[1:3], numbers[::-2]):
        if hashes == "kept":
            caplog.clear()
            assert write(database_url, some, **options).staged == 6
            assert f"repeated with {len(some)} rows of the 6" in caplog.text
        else:
            with pytest.raises(RepeatedWriteError, match=f"committed 6 rows, this time there are {len(some)};"):
                write(database_url, some, **options)
    for others in ([{"input": "6"}], [numbers[0]] * 2, [numbers[1]] * 3, [*numbers, {"input": "6"}]):
        with pytest.raises(RepeatedWriteError, match=f"committed 6 rows, this time there are {len(others)}"):
            write(database_url, others, **options)
    assert (count(session), count(session, Job.Write)) == (6, 1)


@both_servers
def test_the_hashes_of_rows_are_forgotten_after_a_day(database_url: str, session: Session) -> None:
    for write_id in ("old", "new"):
        write(database_url, [{"input": "1"}], type="t", writeId=write_id)
    session.execute(text("UPDATE job_bulk_write SET written_at = now() - interval '25 hours' WHERE write_id = 'old'"))
    session.commit()
    write(database_url, [{"input": "1"}], type="t", writeId="newest")
    statement = "SELECT write_id FROM job_bulk_write WHERE octet_length(row_hashes) = 8 ORDER BY 1"
    assert session.scalars(text(statement)).all() == ["new", "newest"]


def test_the_fingerprint_of_rows_depends_on_neither_order_nor_batches() -> None:
    rows: list[Row] = [{"input": str(n % 3), "deduplication_key": None if n % 2 else f"k{n}"} for n in range(20)]

    def fingerprint(*parts: list[Row]) -> int:
        staged = Staged("w", 0, 0, 0)
        for part in parts:
            staged.add(hashes_of(batch(part)))
        return staged.fingerprint

    assert fingerprint(rows) == fingerprint(rows[:7], rows[:6:-1])
    assert fingerprint(rows) != fingerprint([*rows[:-1], rows[0]])


def test_the_result_says_whether_the_write_had_committed_before(database_url: str, session: Session) -> None:
    first, second = (stage(database_url, [{"input": "1"}]) for _ in range(2))
    results = []
    for tasks in (first, second):
        results.append(commit(session, tasks))
        session.commit()
    assert [result.repeated for result in results] == [False, True]


def test_a_writer_that_gives_up_keeps_the_staged_rows_of_another(database_url: str, session: Session) -> None:
    first_writer, second_writer = (writer(database_url, ["input"], type="t", writeId="nightly") for _ in range(2))
    parts = [[each.write(iter([batch([{"input": "1"}] * 5)]))] for each in (first_writer, second_writer)]
    second_writer.abort([None])
    assert count(session, Job.Stage) == 5
    session.rollback()
    first_writer.commit(list(parts[0]))
    assert count(session) == 5


def test_an_empty_partition_opens_no_connection(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    batch_writer = writer(database_url, ["input"], type="t")
    opened: list[object] = []

    def counted(*arguments: Any, **options: Any) -> Any:
        opened.append(arguments)
        return connect(*arguments, **options)

    monkeypatch.setattr(writing, "connect", counted)
    empty = batch([{"input": "1"}]).slice(0, 0)
    assert [
        batch_writer.write(iter(batches)).rows for batches in ([], [empty], [empty, batch([{"input": "1"}]), empty])
    ] == [0, 0, 1]
    assert len(opened) == 1


@both_servers
def test_staging_lost_in_a_server_crash_is_detected_and_the_write_can_be_repeated(
    database_url: str, session: Session
) -> None:
    batch_writer = writer(database_url, ["input"], type="t", writeId="nightly")
    parts = [batch_writer.write(iter([batch([{"input": "1"}] * 5)])) for _ in range(2)]
    session.execute(text("TRUNCATE job_bulk_staging"))  # as the restart of a server that was killed does
    session.commit()
    parts.append(batch_writer.write(iter([batch([{"input": "1"}])])))
    with pytest.raises(StagedRowsLostError, match="11 rows were staged and 1 are there") as lost:
        batch_writer.commit(list(parts))
    assert (lost.value.expected, lost.value.actual) == (11, 1)
    batch_writer.abort(list(parts))
    assert (count(session), count(session, Job.Write), count(session, Job.Stage)) == (0, 0, 0)
    session.rollback()
    assert write(database_url, [{"input": "1"}] * 5, type="t", writeId="nightly").enqueued == 5


@both_servers
def test_rows_staged_by_a_dead_driver_or_task_attempt_are_ignored(
    database_url: str, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Both drivers begin with Spark's task 0, and neither may take the other's rows for its own.
    stage(database_url, [{"input": '"of the dead"'}] * 3)
    living = stage(database_url, [{"input": '"of the living"'}] * 2)
    result = commit(session, living)
    assert (result.staged, result.enqueued) == (2, 2)
    assert session.scalars(select(Job.input).distinct()).all() == ["of the living"]
    assert count(session, Job.Stage) == 0
    assert len({new_writer_number() for _ in range(1000)}) == 1000


@both_servers
def test_a_commit_broken_by_a_deadlock_or_lost_connection_is_retried_once(
    database_url: str, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch_writer = writer(database_url, ["input"], type="t")
    part = batch_writer.write(iter([batch([{"input": "1"}] * 5)]))
    broken: list[str] = []

    def commit_and_break(session: Session, **options: Any) -> WriteResult:
        result = commit_write(session, **options)
        if not broken:
            broken.append("deadlock")
            session.execute(text("DO $$BEGIN RAISE EXCEPTION 'as if' USING ERRCODE = '40P01'; END$$"))
        if len(broken) == 1:  # it commits, and the answer is lost
            broken.append("connection")
            session.connection().exec_driver_sql("COMMIT")
            session.connection().exec_driver_sql("SELECT pg_terminate_backend(pg_backend_pid())")
        return result

    monkeypatch.setattr("sa_jobqueue.pipeline.spark.writing.commit_write", commit_and_break)
    batch_writer.commit([part])
    assert broken == ["deadlock", "connection"]
    assert (count(session), count(session, Job.Write)) == (5, 1)


@pytest.mark.parametrize("outage", [60.0, 1000.0], ids=["a minute", "longer"])
def test_a_commit_outlives_a_database_that_is_away_for_a_minute(
    database_url: str, session: Session, monkeypatch: pytest.MonkeyPatch, outage: float
) -> None:
    """The database refuses connections; the time passes only in the pauses."""
    batch_writer = writer(database_url, ["input"], type="t")
    part = batch_writer.write(iter([batch([{"input": "1"}] * 5)]))
    pauses: list[float] = []
    engine = create_engine(make_url(database_url).set(database="postgres"), isolation_level="AUTOCOMMIT")

    def allow(connections: str) -> None:
        with engine.connect() as connection:
            name = make_url(database_url).database
            connection.execute(text(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS {connections}'))

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if sum(pauses) >= outage:
            allow("true")

    monkeypatch.setattr(writing, "retried", partial(writing.retried, clock=lambda: sum(pauses), sleep=pause))
    allow("false")
    try:
        if outage > writing.PATIENCE:
            with pytest.raises(DatabaseUnavailableError, match="not currently accepting connections"):
                batch_writer.commit([part])
        else:
            batch_writer.commit([part])
    finally:
        allow("true")
        engine.dispose()
    if outage > writing.PATIENCE:
        assert writing.PATIENCE - writing.LONGEST_PAUSE <= sum(pauses) <= writing.PATIENCE
    assert count(session) == (0 if outage > writing.PATIENCE else 5)
    assert pauses == sorted(pauses)


@both_servers
def test_a_commit_deletes_staged_rows_older_than_a_day(database_url: str, session: Session) -> None:
    stage(database_url, [{"input": "1"}] * 3, write_id="dead")
    session.execute(text("UPDATE job_bulk_staging SET staged_at = now() - interval '25 hours' WHERE row = 0"))
    session.commit()
    write(database_url, [{"input": "2"}], type="t")
    assert session.scalars(select(Job.Stage.row).order_by(Job.Stage.row)).all() == [1, 2]


@both_servers
def test_a_commit_notifies_each_queue_once(database_url: str, notifications: Notifications) -> None:
    rows = [{"queue": queue} for queue in ("mails", "mails", None, "other")]
    write(database_url, rows, rows, type="t")
    assert sorted(notifications.seen()) == [("due", ANY_QUEUE), ("due", "mails"), ("due", "other")]


@both_servers
def test_written_blockers_equal_those_of_a_session(database_url: str, session: Session, jobs: Jobs) -> None:
    def existing_chains() -> list[UUID]:
        completed_id, dead, still = (jobs.add(status) for status in (JobStatus.COMPLETED, JobStatus.DEAD, JobStatus.PENDING))
        return [completed_id, dead, still]

    def described(ids: Sequence[UUID], old: Sequence[UUID]) -> list[tuple[UUID, list[UUID], str]]:
        return [
            (ids[0], [], "wait"),
            (ids[1], [ids[0], *old], "wait"),
            (ids[2], list(old), "fail"),
            (ids[3], list(old), "continue"),
            (ids[4], [old[1], old[0]], "continue"),
            (ids[5], [ids[4]], "wait"),
        ]

    def blockers_of(ids: Sequence[UUID], old: Sequence[UUID]) -> list[Any]:
        session.expire_all()
        blockers_found = []
        places = {job_id: place for place, job_id in enumerate([*ids, *old])}
        for job_id in [*ids, *old]:
            job = session.get_one(Job, job_id)
            edges = session.scalars(select(Job.Blocker).where(Job.Blocker.job_id == job_id).order_by(Job.Blocker.index))
            listed = [(edge.index, places[edge.blocked_by_chain_id], edge.is_resolved, edge.on_failure) for edge in edges]
            blockers_found.append((job.status, job.open_blockers, job.has_waiters, listed))
        return blockers_found

    old, ids = existing_chains(), [uuid7() for _ in range(6)]
    for job_id, waits, policy in described(ids, old):
        session.add(Job("t", id=job_id, blockers=[WaitFor(chain_id, policy) for chain_id in waits]))  # type: ignore[arg-type]
    session.commit()
    expected_blockers = blockers_of(ids, old)

    old, ids = existing_chains(), [uuid7() for _ in range(6)]
    rows = [
        {"id": str(job_id), "blockers": [str(chain_id) for chain_id in waits], "on_failure": policy}
        for job_id, waits, policy in described(ids, old)
    ]
    write(database_url, rows[3:], rows[:3], type="t")
    assert blockers_of(ids, old) == expected_blockers


@both_servers
def test_jobs_blocked_by_chains_of_the_same_write_are_unblocked(
    database_url: str, session: Session, sessions: sessionmaker[Session]
) -> None:
    ids = [str(uuid7()) for _ in range(3)]
    rows: list[Row] = [{"id": ids[0]}, {"id": ids[1], "blockers": [ids[0]]}, {"id": ids[2], "blockers": [ids[0], ids[1]]}]
    write(database_url, rows, type="t")
    for job_id, open_count in ((ids[0], 1), (ids[1], 0)):
        call(sessions, complete_job, UUID(job_id), None)
        last = session.get_one(Job, UUID(ids[2]), populate_existing=True)
        assert last.open_blockers == open_count
        session.rollback()
    assert last.status is JobStatus.PENDING
    call(sessions, cancel_jobs, [UUID(ids[2])])


@both_servers
def test_invalid_blockers_refuse_the_whole_write(database_url: str, session: Session) -> None:
    a, b, c, d = (str(uuid7()) for _ in range(4))
    with pytest.raises(InvalidJobError, match=f"cycle: .*{a} waits for"):
        write(
            database_url,
            [{"id": a, "blockers": [b]}, {"id": b, "blockers": [c]}, {"id": c, "blockers": [a, d]}, {"id": d}],
            type="t",
        )
    with pytest.raises(NotFoundError, match=f"blockers: no such chain: {d}"):
        write(database_url, [{"id": a, "blockers": [d]}], type="t")
    root = Job("t")
    session.add(root)
    session.commit()
    next_id = uuid7()
    session.execute(
        text("INSERT INTO job (id, chain_id, chain_index, type_name, chain_type_name) VALUES (:id, :root, 1, 't', 't')"),
        {"id": next_id, "root": root.id},
    )
    session.commit()
    with pytest.raises(NotFoundError, match=f"{next_id} belongs to chain {root.id}"):
        write(database_url, [{"id": a, "blockers": [str(next_id)]}], type="t")
    session.add(Job("t", deduplication_key="taken"))
    session.commit()
    with pytest.raises(ConflictError, match="was left out, because an open chain has its deduplication key"):
        write(database_url, [{"id": a, "deduplication_key": "taken"}, {"id": b, "blockers": [a]}], type="t")
    bad: list[Row] = [{"id": a, "blockers": [a]}, {"id": b, "blockers": [c, c]}, {"id": c, "blockers": ["x"]}]
    bad += [{"id": d, "blockers": [None]}, {"blockers": [a], "on_failure": "panic"}]
    result = write(database_url, bad, type="t", mode="PERMISSIVE")
    assert (result.enqueued, result.rejected) == (0, 5)
    rejected = session.execute(select(Job.Reject.field, Job.Reject.reason).order_by(Job.Reject.row)).all()
    assert [reject.field for reject in rejected] == [
        "blockers[0]",
        "blockers[1]",
        "blockers[0]",
        "blockers[0]",
        "on_failure",
    ]
    assert count(session) == 3


@both_servers
def test_a_blocker_that_ends_concurrently_leaves_no_job_blocked(
    database_url: str, engine: Engine, sessions: sessionmaker[Session], session: Session, jobs: Jobs
) -> None:
    chain_id = jobs.add(JobStatus.PENDING)
    waiting = str(uuid7())
    tasks = stage(database_url, [{"id": waiting, "blockers": [str(chain_id)]}])
    complete_job(session, chain_id, None)  # holds the chain's root

    def enqueue() -> None:
        call(sessions, commit, tasks)

    with running(enqueue, engine) as errors:
        session.commit()
    assert not errors
    job = session.get_one(Job, UUID(waiting))
    assert (job.status, job.open_blockers) == (JobStatus.PENDING, 0)


def test_the_cost_of_blockers_grows_linearly(database_url: str, engine: Engine) -> None:
    jobs, waiters, each = 4_000, 100, 40
    ids = [str(uuid7()) for _ in range(jobs)]
    rows: list[Row] = [{"id": job_id, "blockers": None} for job_id in ids]
    rows += [{"id": str(uuid7()), "blockers": ids[each * n : each * (n + 1)]} for n in range(waiters)]
    tasks = stage(database_url, rows)
    parameters = {"write_id": "nightly", "sequence": 0, "task_ids": list(tasks)}
    with Session(engine) as session:
        session.execute(bulk.guard())
        connection = session.connection()
        for statement in (
            bulk.chains_waited_for(Job),
            bulk.circular_edges(Job),
            bulk.enqueue_staged(Job, keyed=False, skip=True),
        ):
            chain_parameters: dict[str, Any] = {"ended_ids": [], "completed": []}
            compiled = statement.compile(dialect=connection.dialect)
            bound_parameters = compiled.construct_params(parameters | chain_parameters)
            sql = f"EXPLAIN (ANALYZE, FORMAT JSON, TIMING OFF) {compiled}"
            (plan,) = connection.exec_driver_sql(
                sql, {name: bound_parameters[name] for name in compiled.positiontup or bound_parameters}
            ).scalar_one()
            assert _most(plan["Plan"]) <= 3 * (jobs + waiters + waiters * each), _shape(plan["Plan"])


def _most(node: dict[str, Any]) -> int:
    """Return how many rows passed through the busiest node, those a join threw away included."""
    rows_here = (node.get("Actual Rows", 0) + node.get("Rows Removed by Join Filter", 0)) * node.get("Actual Loops", 1)
    return int(max([rows_here, *(_most(plan_node) for plan_node in node.get("Plans", ()))]))


def _shape(node: dict[str, Any], depth: int = 0) -> str:
    read = node.get("Relation Name", node.get("CTE Name", ""))
    line = f"{'  ' * depth}{node['Node Type']} {read} {node.get('Actual Rows')} x {node.get('Actual Loops')}"
    return "\n".join([line, *(_shape(plan_node, depth + 1) for plan_node in node.get("Plans", ()))])

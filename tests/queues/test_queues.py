"""Queues and job types as rows: their settings, pauses, and declarations in code; several at once."""

from __future__ import annotations

import re
import threading
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from sa_jobqueue import Backoff, JobQueue, operations
from sa_jobqueue.errors import InvalidOptionError, NotFoundError
from sa_jobqueue.policies.retention import Retention
from sa_jobqueue.settings import QueueSettings, TypeSettings
from tests.fixtures.database import both_servers
from tests.fixtures.holders import until_locks_are_waited_for
from tests.fixtures.jobs import WORKER, Jobs
from tests.fixtures.transactions import call
from tests.fixtures.workers import PATIENCE

pytestmark = both_servers
MINUTE = timedelta(minutes=1)


def test_a_queue_has_a_settings_row_once_it_is_configured_or_paused(session: Session, jobs: Jobs) -> None:
    assert operations.list_queues(session).items == []
    jobs.add_worker(WORKER, queues=["mail"])
    (served,) = operations.list_queues(session)
    assert (served.name, served.weight, served.workers, served.created_at) == ("mail", 1, 1, None)
    limits: dict[str, Any] = {"weight": 3, "rate_limit": 10, "rate_period": MINUTE, "retry": Backoff(base=MINUTE)}
    settings = QueueSettings(name="mail", retention=Retention(dead=MINUTE), **limits)
    assert operations.upsert_queue(session, settings)
    assert not operations.upsert_queue(session, settings)  # it is set already
    operations.upsert_queue(session, QueueSettings(name="other"))
    assert operations.pause_queues(session, ["mail", "other"], by="ann").ids == ["mail", "other"]
    assert operations.pause_queues(session, ["other", "mail", "other"], by="ben") == operations.BulkResult(
        [], 2
    )  # the first stays known
    mail, other_queue = operations.list_queues(session)
    assert (mail.weight, mail.rate_limit, mail.rate_period, mail.retain_dead) == (3, 10, MINUTE, MINUTE)
    assert (mail.retry_base, mail.retry_factor, mail.retry_cap) == (MINUTE, 2.0, 60 * MINUTE)
    assert (mail.paused_by, other_queue.paused_by, other_queue.weight, other_queue.workers) == ("ann", "ann", 1, 0)
    assert operations.resume_queues(session, ["mail", "never"]).ids == ["mail"]
    assert [queue.paused_at for queue in operations.list_queues(session, names=["mail"])] == [None]
    assert operations.upsert_queue(session, QueueSettings(name="other")) is False
    assert operations.list_queues(session, names=["other"]).items[0].paused_by == "ann"


def test_a_fairness_key_has_its_own_settings_and_the_workers_of_its_queue(session: Session, jobs: Jobs) -> None:
    for worker in (WORKER, "other:1"):
        jobs.add_worker(worker, queues=["mail"])
    jobs.add_worker("other:2", queues=["reports"])
    jobs.add(queue="idle")
    assert operations.pause_queues(session, ["mail", "idle"], fairness_key="42", by="ann").ids == ["idle", "mail"]
    operations.upsert_queue(session, QueueSettings(name="reports", fairness_key="a b", weight=3))
    operations.upsert_queue(session, QueueSettings(name="reports", weight=2))
    serving = {(queue.name, queue.fairness_key): queue.workers for queue in operations.list_queues(session)}
    assert serving == {("idle", "42"): 0, ("mail", ""): 2, ("mail", "42"): 2, ("reports", ""): 1, ("reports", "a b"): 1}
    (key,) = operations.list_queues(session, names=["mail"], fairness_key="42")
    assert (key.workers, key.paused_by) == (2, "ann")
    (queue,) = operations.list_queues(session, names=["mail"], fairness_key="")
    assert (queue.created_at, queue.paused_at, queue.weight) == (None, None, 1)
    assert operations.get_queue(session, "reports", fairness_key="a b").weight == 3
    assert operations.resume_queues(session, ["mail"]).ids == []
    assert operations.resume_queues(session, ["mail"], fairness_key="42").ids == ["mail"]
    with pytest.raises(NotFoundError, match="no such fairness key of queue mail: '43'; it has no settings"):
        operations.get_queue(session, "mail", fairness_key="43")
    assert operations.get_queue(session, "mail", fairness_key="43", for_update=True).fairness_key == "43"


def test_pages_of_queues_may_end_between_fairness_keys(session: Session, jobs: Jobs) -> None:
    jobs.add_worker(WORKER, queues=["mail", "reports"])
    for fairness_key in ("b", "a", ""):
        operations.upsert_queue(session, QueueSettings(name="mail", fairness_key=fairness_key))
    names: list[tuple[str, str]] = []
    page = operations.list_queues(session, limit=1)
    while page.next is not None:
        names += [(queue.name, queue.fairness_key) for queue in page]
        assert page.next == names[-1]
        page = operations.list_queues(session, limit=1, after=page.next)
    names += [(queue.name, queue.fairness_key) for queue in page]
    assert names == [("mail", ""), ("mail", "a"), ("mail", "b"), ("reports", "")]
    of_key = operations.list_queues(session, fairness_key="b", after=("mail", "a"))
    assert [(queue.name, queue.fairness_key) for queue in of_key] == [("mail", "b")]
    with pytest.raises(InvalidOptionError, match="after"):
        operations.list_queues(session, after="mail")  # type: ignore[arg-type]


def test_job_types_have_settings_like_queues(session: Session, jobs: Jobs) -> None:
    jobs.add_worker(WORKER, job_types=["send"])
    assert operations.upsert_job_type(session, TypeSettings(type_name="send", global_concurrency=2))
    assert operations.pause_job_types(session, ["send"]).ids == ["send"]
    (send,) = operations.list_job_types(session)
    assert (send.global_concurrency, send.paused_by, send.workers) == (2, None, 1)
    assert operations.get_job_type(session, "send") == send
    with pytest.raises(InvalidOptionError, match="name"):
        operations.get_job_type(session, "two words", for_update=True)
    assert send.paused_at is not None
    assert operations.resume_job_types(session, ["send"]).ids == ["send"]


def test_getting_an_unknown_queue_or_type_raises_unless_for_update(session: Session, jobs: Jobs) -> None:
    with pytest.raises(NotFoundError, match="no such queue: 'mail'; it has no settings and no active worker"):
        operations.get_queue(session, "mail")
    with pytest.raises(NotFoundError, match="no such job type: 'send'"):
        operations.get_job_type(session, "send")
    jobs.add_worker(WORKER, queues=["mail"], job_types=["send"])
    assert (operations.get_queue(session, "mail").created_at, operations.get_job_type(session, "send").created_at) == (
        None,
        None,
    )
    assert operations.get_queue(session, "new", for_update=True).created_at is not None
    assert operations.get_job_type(session, "new", for_update=True).created_at is not None


def test_deleting_settings_restores_the_defaults(session: Session, jobs: Jobs) -> None:
    jobs.add_worker(WORKER, queues=["mail"])
    operations.upsert_queue(session, QueueSettings(name="mail", weight=3))
    operations.upsert_queue(session, QueueSettings(name="other"))
    operations.pause_queues(session, ["mail", "other"])
    assert operations.delete_queues(session, ["other", "never", "mail"]).ids == ["mail", "other"]
    assert [(queue.name, queue.weight, queue.paused_at) for queue in operations.list_queues(session)] == [("mail", 1, None)]
    assert operations.delete_queues(session, ["mail"]).ids == []
    operations.upsert_job_type(session, TypeSettings(type_name="send", global_concurrency=2))
    assert operations.delete_job_types(session, ["send"]).ids == ["send"]
    assert operations.list_job_types(session, names=["send"]).items == []
    with pytest.raises(InvalidOptionError, match="must be a list"):
        operations.delete_queues(session, "mail")


def test_names_and_actors_of_queue_settings_are_checked(session: Session) -> None:
    with pytest.raises(InvalidOptionError, match="names"):
        operations.pause_queues(session, ["a b"])
    with pytest.raises(InvalidOptionError, match="must be a list"):
        operations.pause_queues(session, "mail")
    with pytest.raises(InvalidOptionError, match="by"):
        operations.pause_job_types(session, ["send"], by="\x1b[31m")
    with pytest.raises(NotFoundError, match=r"^no such queue: 'nope'; it has no settings and no active worker$"):
        operations.pause_queues(session, ["default", "nope"])
    with pytest.raises(NotFoundError, match="'nope'"):
        operations.pause_queues(session, ["nope"], fairness_key="42", dry_run=True)
    with pytest.raises(NotFoundError, match="'nope'"):
        operations.pause_job_types(session, ["nope"])
    assert operations.list_queues(session).items == []  # nothing was written
    with pytest.raises(InvalidOptionError, match="concurrency"):
        operations.resize_workers(session, 0, where=operations.WorkerFilter())
    jobs: JobQueue[Any] = JobQueue()
    jobs.queue("mail")
    with pytest.raises(InvalidOptionError, match="declared already"):
        jobs.queue("mail", weight=2)
    other_queue: JobQueue[Any] = JobQueue()
    other_queue.queue("mail")
    with pytest.raises(InvalidOptionError, match="declares the queue 'mail'"):
        jobs.include(other_queue)


def test_sync_queues_applies_declared_settings_and_returns_the_changes(session: Session) -> None:
    operations.upsert_queue(session, QueueSettings(name="mail", weight=5))
    operations.upsert_queue(session, QueueSettings(name="by_hand"))
    operations.pause_queues(session, ["mail"], by="ann")
    session.commit()
    jobs: JobQueue[Any] = JobQueue()
    jobs.queue("mail", weight=2, global_concurrency=10)
    jobs.queue("reports")
    synced = operations.sync_queues(session, jobs.declared_queues)
    assert synced.created == ("reports",)
    assert synced.changed == {"mail": {"weight": (5, 2), "global_concurrency": (None, 10)}}
    assert synced.undeclared == ("by_hand",)
    session.rollback()  # a dry run
    assert [queue.name for queue in operations.list_queues(session)] == ["by_hand", "mail"]
    operations.sync_queues(session, jobs.declared_queues)
    assert operations.list_queues(session, names=["mail"]).items[0].paused_by == "ann"
    assert operations.sync_queues(session, jobs.declared_queues).unchanged == ("mail", "reports")
    with pytest.raises(InvalidOptionError, match="twice"):
        operations.sync_queues(session, [QueueSettings(name="a"), QueueSettings(name="a")])


def test_of_two_concurrent_syncs_the_second_waits_and_changes_nothing(engine: Engine, session: Session) -> None:
    new = [QueueSettings(name=name, weight=2) for name in ("b", "a")]
    assert operations.sync_queues(session, new).created == ("a", "b")
    results: list[Any] = []

    def second() -> None:
        results.append(call(engine, operations.sync_queues, reversed(new)))

    thread = threading.Thread(target=second)
    thread.start()
    until_locks_are_waited_for(engine, 1)
    session.commit()
    thread.join(PATIENCE)
    assert [(result.created, result.changed, result.unchanged) for result in results] == [((), {}, ("a", "b"))]


@pytest.mark.parametrize("exists", [True, False], ids=["that is there", "that is new"])
def test_concurrent_changes_of_different_settings_are_both_kept(engine: Engine, exists: bool) -> None:
    with Session(engine) as session, session.begin():
        if exists:
            operations.upsert_queue(session, QueueSettings(name="mail"))
    weights: list[int] = []

    def second() -> None:
        weights.append(call(engine, operations.get_queue, "mail", for_update=True).weight)

    with Session(engine) as session:
        assert operations.get_queue(session, "mail", for_update=True).weight == 1
        thread = threading.Thread(target=second)
        thread.start()
        until_locks_are_waited_for(engine, 1)
        operations.upsert_queue(session, QueueSettings(name="mail", weight=7))
        session.commit()
    thread.join(PATIENCE)
    assert weights == [7]


def test_concurrent_pauses_in_opposite_orders_do_not_deadlock(engine: Engine, session: Session) -> None:
    for name in "amz":
        operations.upsert_queue(session, QueueSettings(name=name))
    session.commit()
    operations.upsert_queue(session, QueueSettings(name="m", weight=2))  # holds the one in the middle
    results: list[Any] = []

    def pause(names: str) -> None:
        try:
            results.append(call(engine, operations.pause_queues, list(names)).ids)
        except OperationalError as error:
            results.append(error)

    threads = [threading.Thread(target=pause, args=(names,)) for names in ("amz", "zma")]
    for number, thread in enumerate(threads, start=1):
        thread.start()
        until_locks_are_waited_for(engine, number)
    session.commit()
    for thread in threads:
        thread.join(PATIENCE)
    assert sorted(results) == [[], ["a", "m", "z"]]


def test_explain_names_the_paused_queue_or_type_and_its_actor(session: Session, jobs: Jobs) -> None:
    job = jobs.add(due_in=-90)
    jobs.add_worker(WORKER)
    operations.pause_queues(session, ["default"], by="ann")
    explanation = operations.explain_job(session, job)
    assert explanation.cause is operations.Cause.QUEUE_PAUSED
    assert re.match(r"It has been due for \d+ min[^;]*; queue 'default' was paused \d", explanation.sentence)
    assert explanation.sentence.endswith(" ago by ann: sa-jobqueue queues resume default.")
    assert explanation.evidence["paused_by"] == "ann"
    operations.resume_queues(session, ["default"])
    operations.pause_job_types(session, ["test"])
    explanation = operations.explain_job(session, job)
    assert explanation.cause is operations.Cause.TYPE_PAUSED
    assert explanation.sentence.endswith(" ago: sa-jobqueue types resume test.")
    operations.resume_job_types(session, ["test"])
    assert operations.explain_job(session, job).cause is not operations.Cause.TYPE_PAUSED


def test_deleting_the_settings_of_a_fairness_key_keeps_those_of_its_queue(session: Session) -> None:
    for fairness_key in ("", "a", "b"):
        operations.upsert_queue(session, QueueSettings(name="mail", fairness_key=fairness_key))
    assert operations.delete_queues(session, ["mail"], fairness_key="a").ids == ["mail"]
    assert [queue.fairness_key for queue in operations.list_queues(session)] == ["", "b"]
    assert operations.delete_queues(session, ["mail"]).ids == ["mail"]
    assert [queue.fairness_key for queue in operations.list_queues(session)] == ["b"]

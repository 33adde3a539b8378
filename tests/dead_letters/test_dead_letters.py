"""Dead letters listed, grouped, redriven and dismissed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from itertools import product
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Engine, delete, func, insert, select, update
from sqlalchemy.orm import Session

from sa_jobqueue import Job, JobStatus
from sa_jobqueue.errors import InvalidJobError, InvalidOptionError
from sa_jobqueue.operations import (
    BulkResult,
    DeadLetterFilter,
    dismiss_dead_letters,
    group_dead_letters,
    list_dead_letters,
    redrive_dead_letters,
)
from sa_jobqueue.statements import claims, completions
from sa_jobqueue.types import DeadReason, Resolution
from tests.fixtures.database import both_servers
from tests.fixtures.holders import until_locks_are_waited_for
from tests.fixtures.jobs import Jobs
from tests.fixtures.notifications import Notifications
from tests.fixtures.transactions import call, rows, write
from tests.fixtures.workers import PATIENCE
from tests.statements.cases import claim_parameters, dying, finish_parameters

pytestmark = both_servers

DEAD, PENDING = JobStatus.DEAD, JobStatus.PENDING


class Life:
    """Runs a job's attempts as a worker does, by the library's own statements."""

    def __init__(self, engine: Engine, session: Session, jobs: Jobs, **columns: Any) -> None:
        self._engine = engine
        self._session = session
        self._jobs = jobs
        self.id = jobs.add(**columns)

    def attempt(self, ending: str) -> None:
        """Run one attempt to its end: failed, dead, snoozed or released."""
        write(self._engine, claims.claim(Job), claim_parameters())
        number = self._jobs.get(self.id)["attempt"]
        parameters = dying([self.id]) if ending == "dead" else finish_parameters([self.id])
        parameters |= {"attempts": [number]}
        if ending in {"snoozed", "released"}:
            parameters |= {"outcomes": [ending], "uncounted": [1]}
        assert rows(self._engine, completions.finish(Job), parameters)

    def redrive(self) -> tuple[int, int]:
        """Redrive it, and return how many attempts it has had and how many it has left."""
        assert redrive_dead_letters(
            self._session, where=DeadLetterFilter(job_ids=[self.id], resolved=None), by="me"
        ).ids == [self.id]
        self._session.commit()
        job = self._jobs.get(self.id)
        assert job["status"] is PENDING
        return job["attempt"], job["max_attempts"] - job["attempt"]


@pytest.fixture
def dead_letters(jobs: Jobs) -> dict[str, UUID]:
    """Give dead jobs by a word for each."""
    return {
        "mail": jobs.add(DEAD, type_name="mail", fingerprint="aa", error={"type": "ValueError"}),
        "mail 2": jobs.add(DEAD, type_name="mail", fingerprint="aa", error={"type": "ValueError"}),
        "mail other": jobs.add(DEAD, type_name="mail", fingerprint="bb", error={"type": "KeyError"}),
        "lost": jobs.add(DEAD, type_name="mail", reason=DeadReason.LOST, queue="q"),
        "report": jobs.add(DEAD, type_name="report", reason=DeadReason.DISCARDED, fingerprint="aa", queue="q"),
    }


# Looking.


def test_a_dead_letter_filter_selects_by_each_field(session: Session, dead_letters: dict[str, UUID]) -> None:
    by_job = {dead_letter.job_id: dead_letter for dead_letter in list_dead_letters(session)}

    def found(**where: Any) -> set[str]:
        ids = {dead_letter.job_id for dead_letter in list_dead_letters(session, where=DeadLetterFilter(**where))}
        return {word for word, job_id in dead_letters.items() if job_id in ids}

    assert found() == set(dead_letters)
    assert found(types=["report"]) == {"report"}
    assert found(queues=["q"]) == {"lost", "report"}
    assert found(reasons=[DeadReason.LOST, DeadReason.DISCARDED]) == {"lost", "report"}
    assert found(fingerprints=["aa"]) == {"mail", "mail 2", "report"}
    assert found(types=["mail"], fingerprints=["aa"]) == {"mail", "mail 2"}
    assert found(job_ids=[dead_letters["lost"], dead_letters["mail"]]) == {"lost", "mail"}
    assert found(ids=[by_job[dead_letters["report"]].id]) == {"report"}
    now = session.execute(select(func.now())).scalar_one()
    assert found(died_before=now + timedelta(hours=1)) == set(dead_letters)
    assert found(died_before=now - timedelta(hours=1)) == set()
    assert found(resolved=True) == set()
    dismiss_dead_letters(session, where=DeadLetterFilter(types=["report"]), by="me")
    assert found() == set(dead_letters) - {"report"}
    assert found(resolved=True) == {"report"}
    assert found(resolved=None) == set(dead_letters)


def test_dead_letters_are_grouped_by_type_reason_and_error(session: Session, dead_letters: dict[str, UUID]) -> None:
    groups = group_dead_letters(session)
    assert [(group.type_name, group.reason, group.fingerprint, group.error_type, group.count) for group in groups] == [
        ("mail", "exhausted", "aa", "ValueError", 2),
        ("mail", "exhausted", "bb", "KeyError", 1),
        ("mail", "lost", None, None, 1),
        ("report", "discarded", "aa", None, 1),
    ]
    first = groups[0]
    assert first.first_died_at <= first.last_died_at
    assert first.example_job_id in {dead_letters["mail"], dead_letters["mail 2"]}
    assert (first.last_hour, first.fairness_key) == (2, "")
    assert [group.count for group in group_dead_letters(session, scan=1)] == [1]
    assert len(group_dead_letters(session, limit=2)) == 2
    assert group_dead_letters(session, where=DeadLetterFilter(types=["report"]))[0].count == 1
    assert group_dead_letters(session, where=DeadLetterFilter(types=["none"])) == []


# Redriving.


def test_redriven_jobs_are_pending_again(
    session: Session, jobs: Jobs, dead_letters: dict[str, UUID], notifications: Notifications
) -> None:
    mail_letters = DeadLetterFilter(types=["mail"])
    expected = sorted(job_id for word, job_id in dead_letters.items() if word != "report")
    assert redrive_dead_letters(session, where=mail_letters, by="me", dry_run=True).ids == expected
    assert set(jobs.statuses().values()) == {DEAD}
    assert redrive_dead_letters(session, where=mail_letters, by="me").ids == expected
    assert notifications.seen() == []
    session.commit()
    for word, job_id in dead_letters.items():
        (dead_letter,) = jobs.dead_letters(job_id)
        assert jobs.status(job_id) is (DEAD if word == "report" else PENDING)
        assert dead_letter["resolution"] == (None if word == "report" else Resolution.REDRIVEN)
        assert dead_letter["resolved_by"] == (None if word == "report" else "me")
    assert sorted(notifications.seen()) == [("due", "default"), ("due", "q")]
    assert redrive_dead_letters(session, where=mail_letters).ids == []


def test_the_actor_of_a_redrive_defaults_to_the_database_user(session: Session, jobs: Jobs) -> None:
    attributed, unnamed = jobs.add(DEAD), jobs.add(DEAD)
    redrive_dead_letters(session, where=DeadLetterFilter(job_ids=[attributed]), by="somebody; DROP TABLE 'x")
    redrive_dead_letters(session, where=DeadLetterFilter(job_ids=[unnamed]))
    session.commit()
    assert jobs.dead_letters(attributed)[0]["resolved_by"] == "somebody; DROP TABLE 'x"
    assert jobs.dead_letters(unnamed)[0]["resolved_by"] == "postgres"


@pytest.mark.parametrize("resolve", [redrive_dead_letters, dismiss_dead_letters])
def test_successive_calls_resolve_each_dead_letter_once(
    session: Session, jobs: Jobs, resolve: Callable[..., BulkResult[Any]]
) -> None:
    for _ in range(5):
        jobs.add(DEAD)
    matching_ids = sorted(
        dead_letter["job_id" if resolve is redrive_dead_letters else "id"] for dead_letter in jobs.dead_letters()
    )
    for limit, dry_run in product([1, 2, 5, 6], [True, False]):
        resolved_ids: list[Any] = []
        result = resolve(session, by="me", limit=limit, dry_run=dry_run)
        while True:
            assert result.matched == result.changed == len(result.ids) <= limit
            resolved_ids += result
            if result.next is None:
                break
            result = resolve(session, by="me", after=result.next, limit=limit, dry_run=dry_run)
        assert resolved_ids == matching_ids
        assert {resolution is None for resolution in session.scalars(select(Job.DeadLetter.resolution))} == {dry_run}
        session.rollback()


def test_limit_and_after_of_redrive_and_dismiss_are_checked(session: Session) -> None:
    with pytest.raises(InvalidOptionError, match="limit"):
        list_dead_letters(session, limit=0)
    for resolve in (redrive_dead_letters, dismiss_dead_letters):
        with pytest.raises(InvalidOptionError, match="limit"):
            resolve(session, by="me", limit=0)
        with pytest.raises(InvalidJobError, match="after"):
            resolve(session, by="me", after="no id")


def test_dead_letters_without_a_dead_job_are_skipped(session: Session, jobs: Jobs, engine: Engine) -> None:
    """A dead letter outlives its job's retention, and must not delay the others."""
    deleted, alive, dead = (jobs.add(DEAD) for _ in range(3))
    with engine.begin() as connection:
        connection.execute(delete(Job.__table__).where(Job.id == deleted))  # type: ignore[arg-type]
        again = {"status": PENDING, "completed_at": None, "chain_completed_at": None}
        connection.execute(update(Job.__table__).where(Job.id == alive).values(again))  # type: ignore[arg-type]
    assert redrive_dead_letters(session, dry_run=True).ids == [dead]
    assert redrive_dead_letters(session, limit=1).ids == [dead]
    session.commit()
    assert jobs.dead_letters(deleted)[0]["resolution"] == "dismissed"


def test_a_job_with_several_dead_letters_is_redriven_once(session: Session, jobs: Jobs, engine: Engine) -> None:
    life = Life(engine, session, jobs, max_attempts=1)
    life.attempt("dead")
    life.redrive()
    life.attempt("dead")
    assert len(jobs.dead_letters(life.id)) == 2
    assert redrive_dead_letters(session, where=DeadLetterFilter(resolved=None)).ids == [life.id]
    session.commit()
    assert [dead_letter["resolution"] for dead_letter in jobs.dead_letters(life.id)] == ["redriven", "redriven"]


def test_a_job_redriven_after_a_dismissal_gets_its_original_number_of_attempts(
    session: Session, jobs: Jobs, engine: Engine
) -> None:
    life = Life(engine, session, jobs, max_attempts=2)
    for _ in range(3):
        life.attempt("failed")
        life.attempt("dead")
        dismiss_dead_letters(session, by="me")
        session.commit()
        assert life.redrive()[1] == 2


def test_a_redrive_refreshes_jobs_loaded_in_the_session(session: Session, jobs: Jobs) -> None:
    job = session.get_one(Job, jobs.add(DEAD))
    redrive_dead_letters(session)
    assert job.status is PENDING


# Dismissing.


def test_dismissed_dead_letters_are_resolved_and_their_jobs_stay_dead(
    session: Session, jobs: Jobs, dead_letters: dict[str, UUID]
) -> None:
    where = DeadLetterFilter(reasons=[DeadReason.LOST, DeadReason.DISCARDED])
    expected = {jobs.dead_letters(dead_letters[word])[0]["id"] for word in ("lost", "report")}
    assert set(dismiss_dead_letters(session, where=where, by="me", dry_run=True).ids) == expected
    assert all(dead_letter["resolution"] is None for dead_letter in jobs.dead_letters())
    assert set(dismiss_dead_letters(session, where=where, by="me").ids) == expected
    session.commit()
    for dead_letter in jobs.dead_letters():
        chosen = dead_letter["id"] in expected
        assert dead_letter["resolution"] == (Resolution.DISMISSED if chosen else None)
        assert dead_letter["resolved_by"] == ("me" if chosen else None)
        assert (dead_letter["resolved_at"] is not None) is chosen
    assert set(jobs.statuses().values()) == {DEAD}


def test_resolved_dead_letters_are_not_changed(session: Session, jobs: Jobs) -> None:
    first = jobs.add(DEAD)
    dismiss_dead_letters(session, by="first")
    second = jobs.add(DEAD)
    everything = DeadLetterFilter(resolved=None)
    dry = dismiss_dead_letters(session, where=everything, by="second", dry_run=True).ids
    assert dismiss_dead_letters(session, where=everything, by="second").ids == dry == [jobs.dead_letters(second)[0]["id"]]
    session.commit()
    assert jobs.dead_letters(first)[0]["resolved_by"] == "first"


def test_a_dead_letter_dismissed_concurrently_keeps_its_first_actor(engine: Engine, jobs: Jobs) -> None:
    first, second = sorted(jobs.dead_letters(jobs.add(DEAD))[0]["id"] for _ in range(2))
    results: list[Any] = []

    def dismiss_all() -> None:
        results.append(call(engine, dismiss_dead_letters, by="second"))

    with Session(engine) as session:
        assert dismiss_dead_letters(session, where=DeadLetterFilter(ids=[first]), by="first").ids == [first]
        thread = threading.Thread(target=dismiss_all)
        thread.start()
        until_locks_are_waited_for(engine, 1)
        session.commit()
    thread.join(PATIENCE)
    assert results == [BulkResult([second], 1)]
    assert {dead_letter["id"]: dead_letter["resolved_by"] for dead_letter in jobs.dead_letters()} == {
        first: "first",
        second: "second",
    }


def test_a_dismissed_job_can_still_be_redriven(session: Session, jobs: Jobs) -> None:
    job_id = jobs.add(DEAD)
    dismiss_dead_letters(session, by="me")
    assert redrive_dead_letters(session).ids == []
    assert redrive_dead_letters(session, where=DeadLetterFilter(resolved=True)).ids == [job_id]
    session.commit()
    assert jobs.status(job_id) is PENDING
    assert jobs.dead_letters(job_id)[0]["resolution"] == Resolution.DISMISSED


def test_a_job_has_at_most_one_unresolved_dead_letter(engine: Engine, jobs: Jobs) -> None:
    from sqlalchemy.exc import IntegrityError

    job_id = jobs.add(DEAD)
    row = dict(jobs.dead_letters(job_id)[0]) | {"id": Job.__id_factory__()}
    with engine.begin() as connection, pytest.raises(IntegrityError, match="uq_dead_letter_open"):
        connection.execute(insert(Job.DeadLetter.__table__).values(row))  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("newest_first", [True, False])
@pytest.mark.parametrize("limit", [1, 2, 5, 6])
def test_pages_list_each_dead_letter_once(
    session: Session, dead_letters: dict[str, UUID], limit: int, newest_first: bool
) -> None:
    listed_letters: list[Any] = []
    after, ended = None, False
    while not ended:
        page = list_dead_letters(session, after=after, limit=limit, newest_first=newest_first)
        assert 0 < len(page.items) <= limit
        listed_letters += page
        after, ended = page.next, page.next is None
    ids = [dead_letter.id for dead_letter in listed_letters]
    assert ids == sorted(ids, reverse=newest_first)
    assert len(set(ids)) == len(dead_letters)

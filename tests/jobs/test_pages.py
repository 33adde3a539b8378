"""Every listing has pages: each item is shown once, in one order, whatever the size of the page."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from sqlalchemy import insert
from sqlalchemy.orm import Session

from sa_jobqueue import Job, Schedule, operations
from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.operations.pages import every_item
from sa_jobqueue.settings import QueueSettings, TypeSettings
from sa_jobqueue.types import AttemptOutcome
from tests.fixtures.database import both_servers
from tests.fixtures.jobs import Jobs

pytestmark = both_servers

Listing = Callable[..., operations.Page[Any]]
NAMES = ["Zoo", "a", "a/1", "a/10", "a/2", "mail", "z"]


@pytest.fixture(params=["queues", "job types", "schedules", "workers", "attempts"])
def listing(request: pytest.FixtureRequest, session: Session, jobs: Jobs) -> Listing:
    """Give a listing that has seven items."""
    match request.param:
        case "queues":
            jobs.add_worker("served:1", queues=NAMES[:3])
            for name in NAMES[2:]:
                operations.upsert_queue(session, QueueSettings(name=name))
            return operations.list_queues
        case "job types":
            for name in NAMES:
                operations.upsert_job_type(session, TypeSettings(type_name=name))
            return operations.list_job_types
        case "schedules":
            for name in NAMES:
                operations.upsert_schedule(session, Schedule(name=name, cron="@daily", type_name="test"))
            return operations.list_schedules
        case "workers":
            for number, name in enumerate(["b", "a", "b", "a", "c", "b", "C"]):
                jobs.add_worker(f"{name}:{number}", name=name)
            return operations.list_workers
    job_id = jobs.add()
    row = {"job_id": job_id, "worker_id": "a", "outcome": AttemptOutcome.FAILED}
    session.execute(insert(Job.Attempt), [row | {"attempt": number} for number in range(1, 8)])
    return lambda session, **options: operations.list_attempts(session, job_id, **options)


def keys(items: Iterable[Any]) -> list[tuple[Any, ...]]:
    return [tuple(getattr(item, name, None) for name in ("name", "type_name", "id", "attempt")) for item in items]


@pytest.mark.slow
@pytest.mark.parametrize("limit", [1, 3, 6, 7, 8])
def test_pages_of_every_listing_contain_each_item_once(session: Session, listing: Listing, limit: int) -> None:
    everything = listing(session)
    assert (len(set(keys(everything))), everything.next) == (7, None)
    pages: list[operations.Page[Any]] = []
    after = None
    while not pages or after is not None:
        pages.append(listing(session, after=after, limit=limit))
        after = pages[-1].next
    assert [key for page in pages for key in keys(page)] == keys(everything)
    assert [len(page.items) for page in pages[:-1]] == [limit] * ((7 - 1) // limit)
    assert keys(every_item(lambda after: listing(session, after=after, limit=limit))) == keys(everything)


def test_a_page_position_of_another_listing_is_refused(session: Session, listing: Listing) -> None:
    with pytest.raises(InvalidOptionError, match="after: must be the `next` of a page of this listing"):
        listing(session, after={"name": "a"})
    with pytest.raises(InvalidOptionError, match="limit: must be from 1 to 1000"):
        listing(session, limit=0)


def test_attempts_are_listed_newest_first_on_demand(session: Session, jobs: Jobs) -> None:
    job_id = jobs.add()
    row = {"job_id": job_id, "worker_id": "a", "outcome": AttemptOutcome.FAILED}
    session.execute(insert(Job.Attempt), [row | {"attempt": number} for number in (1, 2, 3)])
    page = operations.list_attempts(session, job_id, limit=2, newest_first=True)
    assert ([attempt.attempt for attempt in page], page.next) == ([3, 2], 2)
    assert [
        attempt.attempt for attempt in operations.list_attempts(session, job_id, after=page.next, newest_first=True)
    ] == [1]

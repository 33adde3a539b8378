"""Listings of jobs, chains, a chain's jobs, blockers and blocked jobs: their pages, and the cost of reading them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, event, select
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session

from sa_jobqueue import Job, JobStatus, aio, get_chain, list_jobs, operations
from sa_jobqueue.errors import InvalidJobError, InvalidOptionError, NotFoundError
from sa_jobqueue.ids import uuid7
from tests.fixtures.chains import Chains
from tests.fixtures.database import both_servers
from tests.fixtures.jobs import Jobs
from tests.fixtures.transactions import write

pytestmark = both_servers

FUTURE = datetime(2099, 1, 1, tzinfo=UTC)
DONE, PENDING, DEAD, BLOCKED = JobStatus.COMPLETED, JobStatus.PENDING, JobStatus.DEAD, JobStatus.BLOCKED
CANCELLED, RUNNING = JobStatus.CANCELLED, JobStatus.RUNNING


def pages(listing: Callable[..., operations.Page[Any]], *arguments: Any, key: str = "id", **options: Any) -> list[list[Any]]:
    """Follow a listing to its end; return what each page had."""
    listed_ids: list[list[Any]] = []
    after = None
    while True:
        page = listing(*arguments, after=after, **options)
        listed_ids.append([getattr(item, key) for item in page])
        assert len(page.items) <= options.get("limit", 50)
        assert page.next is None or page.next != after, "a cursor that does not move"
        after = page.next
        if after is None:
            return listed_ids


def flat(ids_by_page: list[list[Any]]) -> list[Any]:
    return [job_id for page in ids_by_page for job_id in page]


# Pages.


def test_pages_list_each_job_once_during_concurrent_writes(session: Session, jobs: Jobs) -> None:
    ids = jobs.add_many(4)
    first = list_jobs(session, limit=2)
    session.commit()
    jobs.add_many(2)
    second = list_jobs(session, limit=2, after=first.next)
    assert [job.id for job in (*first, *second)] == sorted(ids, reverse=True)
    assert second.next is None


@pytest.mark.slow
@pytest.mark.parametrize("newest_first", [True, False])
@pytest.mark.parametrize("scan_limit", [1, 2, 3, 10, 11])
def test_a_listing_that_reaches_its_scan_limit_returns_where_to_continue(
    session: Session, jobs: Jobs, scan_limit: int, newest_first: bool
) -> None:
    """Whether a page ends with a job that fits, with one that does not, at the limit of both, or beyond the last."""
    ids = [jobs.add(type_name="needle" if fits else "hay") for fits in map(int, "0110001001")]
    needles = [job_id for job_id, fits in zip(ids, "0110001001", strict=True) if fits == "1"]
    for limit in (1, 2, 5):
        options: dict[str, Any] = {"limit": limit, "scan_limit": scan_limit, "newest_first": newest_first}
        listed = pages(list_jobs, session, where=operations.JobFilter(types=["needle"]), **options)
        assert flat(listed) == sorted(needles, reverse=newest_first)
        assert len(listed) <= 11 // scan_limit + 4


@pytest.mark.slow
@pytest.mark.parametrize("newest_first", [True, False])
@pytest.mark.parametrize("state", [PENDING, RUNNING, BLOCKED, DEAD])
def test_a_state_that_is_not_an_end_is_listed_by_its_index_however_many_have_ended(
    session: Session, jobs: Jobs, chains: Chains, state: JobStatus, newest_first: bool
) -> None:
    jobs.add(DONE)
    expected_ids = [jobs.add(state, queue=queue) for queue in ("mail", "default", "default")]
    for _ in range(20):
        jobs.add(DONE)
    root, last = chains.add(DONE, state)
    options: dict[str, Any] = {"scan_limit": 5, "newest_first": newest_first}
    both = [PENDING, state]
    expected = sorted([*expected_ids, last], reverse=newest_first)
    assert pages(list_jobs, session, where=operations.JobFilter(statuses=both), **options) == [expected]
    assert pages(list_jobs, session, where=operations.JobFilter(statuses=both, queues=["mail"]), **options) == [
        [expected_ids[0]]
    ]
    roots = sorted([*expected_ids, root], reverse=newest_first)
    assert pages(operations.list_chains, session, where=operations.ChainFilter(statuses=both), **options) == [roots]


@pytest.mark.parametrize(("option", "value"), [("limit", 0), ("limit", 1001), ("scan_limit", 0), ("scan_limit", 10**7)])
def test_the_bounds_of_a_page_are_checked(session: Session, option: str, value: int) -> None:
    for listing in (list_jobs, operations.list_chains):
        with pytest.raises(InvalidOptionError, match=f"{option}: must be from 1 to"):
            listing(session, **dict[str, Any]({option: value}))


def test_listings_with_columns_load_only_those(session: Session, engine: Engine, chains: Chains) -> None:
    root, last = chains.add(DONE, PENDING, input={"large": 1})
    statements: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda *arguments: statements.append(arguments[2]))
    loaded_jobs = list_jobs(session, columns=["status", "id"]).items
    assert [(job.id, job.status) for job in loaded_jobs] == [(last, PENDING), (root, DONE)]
    assert [chain.length for chain in operations.list_chains(session, columns=["length"])] == [2]
    assert [job.id for job in operations.list_chain_jobs(session, root, columns=["id"])] == [root, last]
    assert operations.list_blocked_jobs(session, root, columns=["id"]) == operations.Page([], None)
    assert not [statement for statement in statements if "input" in statement]
    assert loaded_jobs[1].input == {"large": 1}  # loaded when it is read
    for listing in (list_jobs, operations.list_chains):
        with pytest.raises(InvalidOptionError, match="columns: must be among"):
            listing(session, columns=["size"])
        with pytest.raises(InvalidOptionError, match="columns: must be a list"):
            listing(session, columns="id")


# Jobs.


def test_a_job_filter_selects_by_each_field(session: Session, jobs: Jobs, chains: Chains) -> None:
    a = jobs.add(type_name="a", queue="x", created_at=FUTURE)
    b = jobs.add(RUNNING, type_name="b", queue="x", created_at=FUTURE + timedelta(days=1))
    c = jobs.add(DEAD, type_name="b", queue="y")
    root, last = chains.add(DONE, PENDING, chain_type_name="long")

    def found(**where: Any) -> set[Any]:
        return set(flat(pages(list_jobs, session, where=operations.JobFilter(**where), limit=2)))

    assert found() == {a, b, c, root, last}
    assert found(statuses=[PENDING, DEAD]) == {a, c, last}
    assert found(types=["b"]) == {b, c}
    assert found(queues=["x"]) == {a, b}
    assert found(types=["b"], queues=["x"], statuses=[RUNNING]) == {b}
    assert found(types=["a"], queues=["y"]) == set()
    assert found(ids=[a, c, uuid7()]) == {a, c}
    assert found(chain_ids=[root, b]) == {root, last, b}
    assert found(chain_ids=[last]) == set()
    assert found(chain_ids=[root], ids=[last, a]) == {last}
    assert found(chain_ids=[root], statuses=[PENDING]) == {last}
    assert found(chain_types=["long"]) == {root}
    assert found(created_after=FUTURE) == {a, b}
    assert found(created_after=FUTURE, created_before=FUTURE + timedelta(days=1)) == {a}


def test_a_chain_longer_than_the_scan_limit_is_listed_completely(session: Session, chains: Chains) -> None:
    ids, other_ids = chains.add(*[DONE] * 8), chains.add(DONE, DONE)
    for scan_limit in (3, 7, 8, 9, 10, 11):
        where = operations.JobFilter(chain_ids=[ids[0], other_ids[0]])
        listed = pages(list_jobs, session, where=where, limit=3, scan_limit=scan_limit, newest_first=False)
        assert flat(listed) == sorted(ids + other_ids)


# Chains.


def every_kind(chains: Chains) -> dict[str, Any]:
    ended = {status.value: chains.add(status)[0] for status in (DONE, DEAD, CANCELLED)}
    going_on = {f"then {status.value}": chains.add(DONE, DONE, status)[0] for status in JobStatus}
    return {"pending": chains.add(PENDING)[0], "blocked": chains.add(BLOCKED)[0]} | ended | going_on


def test_filtering_chains_by_status_matches_the_listed_status(session: Session, chains: Chains) -> None:
    chain_ids = every_kind(chains)
    status_by_id = {chain.id: chain.status for chain in operations.list_chains(session)}
    assert set(status_by_id) == set(chain_ids.values())
    for status in JobStatus:
        listed = pages(operations.list_chains, session, where=operations.ChainFilter(statuses=[status]), limit=1)
        assert flat(listed) == sorted(
            (chain_id for chain_id in status_by_id if status_by_id[chain_id] is status), reverse=True
        )
        assert chain_ids[f"then {status.value}"] in flat(listed)


def test_chains_are_filtered_by_attributes_of_their_root_and_by_any_job_id(session: Session, chains: Chains) -> None:
    a, a2 = chains.add(DONE, PENDING, type_name="a", queue="x", created_at=FUTURE)
    b, b2, b3 = chains.add(DONE, DONE, DEAD, type_name="b")
    (waiting,) = chains.add(BLOCKED)
    chains.block(waiting, a)

    def found(**where: Any) -> set[Any]:
        return set(
            flat(pages(operations.list_chains, session, where=operations.ChainFilter(**where), limit=1, scan_limit=2))
        )

    assert found() == {a, b, waiting}
    assert found(types=["a", "test1"]) == {a}
    assert found(queues=["x"]) == {a}
    assert found(ids=[a, b2]) == {a}
    assert found(job_ids=[a2, b3, b]) == {a, b}
    assert found(job_ids=[a2], ids=[b]) == set()
    assert found(top_level=True) == {b, waiting}
    assert found(created_after=FUTURE) == {a}
    assert found(created_before=FUTURE) == {b, waiting}


def test_get_chain_reads_the_current_state(session: Session, engine: Engine, chains: Chains) -> None:
    (root,) = chains.add(PENDING)
    loaded_chain = get_chain(session, root)
    session.commit()
    reads: list[Callable[[], Any]] = [lambda: get_chain(session, root), lambda: operations.list_chains(session).items[0]]
    for read in reads:
        assert loaded_chain.status is PENDING
        write(engine, "UPDATE job SET queue = 'moved', status = 'running', leased_by = 'w'")
        assert read() is loaded_chain
        assert (loaded_chain.status, loaded_chain.queue) == (RUNNING, "moved")
        write(engine, "UPDATE job SET status = 'pending', leased_by = NULL")
        get_chain(session, root)
        session.commit()


def test_get_chain_finds_a_job_pending_in_the_session(session: Session) -> None:
    job = Job("test")
    session.add(job)
    assert get_chain(session, job.id).status is PENDING
    assert operations.list_chain_jobs(session, job.id).items == [job]


@pytest.mark.parametrize("read", [get_chain, operations.list_chain_jobs])
def test_unknown_chains_and_continuation_ids_are_told_apart(session: Session, chains: Chains, read: Any) -> None:
    root, last = chains.add(DONE, PENDING)
    missing = uuid7()
    with pytest.raises(NotFoundError) as caught:
        read(session, missing)
    assert caught.value.ids == (missing,)
    with pytest.raises(NotFoundError) as misnamed:
        read(session, last)
    assert f"{last} belongs to chain {root}" in str(misnamed.value)
    with pytest.raises(InvalidJobError):
        read(session, "no uuid")


# What belongs to a chain.


@pytest.mark.parametrize("newest_first", [True, False])
def test_the_jobs_of_a_chain_are_paged_in_order(session: Session, chains: Chains, newest_first: bool) -> None:
    ids, _ = chains.add(*[DONE] * 4, PENDING), chains.add(DONE, DONE)
    for limit in (1, 2, 4, 5, 6):
        listed = pages(operations.list_chain_jobs, session, ids[0], limit=limit, newest_first=newest_first)
        assert flat(listed) == (ids[::-1] if newest_first else ids)
        assert len(listed) == -(-5 // limit)


def test_the_blockers_of_a_job_are_paged_in_order_with_their_chains(session: Session, chains: Chains) -> None:
    waited = [chains.add(DONE, status)[0] for status in (DONE, DEAD, PENDING)]
    waited = [waited[1], waited[0], waited[2]]
    (waiting,), (other_id,) = chains.add(BLOCKED), chains.add(BLOCKED)
    chains.block(waiting, *waited, on_failure="continue")
    chains.block(other_id, *reversed(waited))
    for limit in (1, 2, 3, 4):
        listed = pages(operations.list_blockers, session, waiting, limit=limit, key="blocked_by_chain_id")
        assert flat(listed) == waited
    edges = operations.list_blockers(session, waiting).items
    session.expunge_all()  # what is not loaded cannot be had any more
    assert [edge.chain.status for edge in edges] == [DEAD, DONE, PENDING]
    assert (edges[0].index, edges[0].is_resolved, edges[0].on_failure) == (0, False, "continue")
    assert operations.list_blockers(session, waited[0]).items == []


@pytest.mark.parametrize("newest_first", [True, False])
def test_the_jobs_blocked_by_a_chain_are_paged(session: Session, chains: Chains, newest_first: bool) -> None:
    root, _ = chains.add(DONE, PENDING)
    waiting = [chains.add(BLOCKED)[0] for _ in range(4)]
    through = chains.add(DONE)[0]
    for job in waiting:
        chains.block(job, root)
    chains.block(through, root, is_resolved=True)
    for limit, scan_limit in ((1, 1), (2, 3), (10, 10)):
        options: dict[str, Any] = {"limit": limit, "scan_limit": scan_limit, "newest_first": newest_first}
        listed = pages(operations.list_blocked_jobs, session, root, **options)
        assert flat(listed) == sorted([*waiting, through], reverse=newest_first)
        listed = pages(operations.list_blocked_jobs, session, root, open_only=True, **options)
        assert flat(listed) == sorted(waiting, reverse=newest_first)
    assert operations.list_blocked_jobs(session, through).items == []


async def test_async_listings_return_the_same_items(
    async_sessions: async_sessionmaker[AsyncSession], chains: Chains
) -> None:
    root, last = chains.add(DONE, PENDING)
    (waiting,) = chains.add(BLOCKED)
    chains.block(waiting, root)
    async with async_sessions() as session:
        assert (await aio.get_chain(session, root)).length == 2
        assert [chain.id for chain in await aio.list_chains(session, where=operations.ChainFilter(job_ids=[last]))] == [root]
        assert [job.id for job in await aio.list_chain_jobs(session, root)] == [root, last]
        assert [edge.chain.id for edge in await aio.list_blockers(session, waiting)] == [root]
        assert [job.id for job in await aio.list_blocked_jobs(session, root)] == [waiting]
        assert (await aio.list_jobs(session, limit=1)).next == waiting


def test_jobs_are_listed_by_queue_and_by_fairness_key(session: Session, jobs: Jobs) -> None:
    none = jobs.add(queue="mail")
    first, two = (jobs.add(JobStatus.DEAD, queue="mail", fairness_key=key) for key in ("1", "2"))
    elsewhere = jobs.add(queue="other", fairness_key="1")
    cases: list[tuple[dict[str, Any], set[Any]]] = [
        ({"queues": ["mail"]}, {none, first, two}),
        ({"queues": ["mail"], "fairness_keys": ["1"]}, {first}),
        ({"queues": ["mail"], "fairness_keys": ["2", "1"]}, {first, two}),
        ({"queues": ["mail"], "fairness_keys": [""]}, {none}),
        ({"fairness_keys": ["1"]}, {first, elsewhere}),
    ]
    for job_filter, expected in cases:
        assert {job.id for job in list_jobs(session, where=operations.JobFilter(**job_filter))} == expected
        chains = operations.list_chains(session, where=operations.ChainFilter(**job_filter))
        assert {chain.id for chain in chains} == expected
        dead_letters = operations.list_dead_letters(session, where=operations.DeadLetterFilter(**job_filter))
        assert {dead_letter.job_id for dead_letter in dead_letters} == expected & {first, two}
    assert session.scalars(select(Job.id).where(Job.queue == "mail").order_by(Job.id)).all() == [none, first, two]
    assert [chain.fairness_key for chain in chains] == ["1", "1"]

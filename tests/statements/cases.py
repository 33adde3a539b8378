"""The statements whose plan or text is tested: how each is built, its parameters, and the indexes its docstring names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from sa_jobqueue import Job, JobStatus
from sa_jobqueue.ids import uuid7
from sa_jobqueue.operations import ChainFilter, JobFilter
from sa_jobqueue.statements import claims, completions, deletion, jobs, leases, listings, notifications, waiting
from sa_jobqueue.types import MAX_PRIORITY, MIN_PRIORITY
from tests.fixtures.jobs import WORKER
from tests.statements.chain_cases import CHAIN_CASES
from tests.statements.deduplication_cases import DEDUPLICATION_CASES
from tests.statements.explaining_cases import EXPLAINING_CASES
from tests.statements.health_cases import HEALTH_CASES
from tests.statements.retention_cases import RETENTION_CASES
from tests.statements.schedule_cases import SCHEDULE_CASES
from tests.statements.scheduling_cases import SCHEDULING_CASES
from tests.statements.shapes import BATCH, NOBODY, PK, Case, World, complete_one_parameters
from tests.statements.step_cases import STEP_CASES
from tests.statements.trace_cases import TRACE_CASES
from tests.statements.worker_cases import WORKER_CASES

START = datetime(1, 1, 1, tzinfo=UTC)


def lanes(at: datetime = START, *, queues: Sequence[str] = ("default", "other")) -> dict[str, Any]:
    """Give the lanes of a worker that serves some queues, their cursors at one instant."""
    each = [(queue, priority) for priority in range(MAX_PRIORITY, MIN_PRIORITY - 1, -1) for queue in queues]
    return {
        "queues": [queue for queue, _ in each],
        "fairness_keys": [""] * len(each),
        "priorities": [priority for _, priority in each],
        "cursor_at": [at] * len(each),
        "cursor_id": [NOBODY] * len(each),
    }


def claim_parameters(
    at: datetime = START, *, limit: int = BATCH, types: Sequence[str] = ("test", "mail"), **more: Any
) -> dict[str, Any]:
    """Give a claim's parameters: one segment."""
    parameters = lanes(at)
    parameters |= {"types": list(types), "segment_first_type": [1], "segment_last_type": [len(types)]}
    parameters |= {"segment_first": [1], "segment_last": [len(parameters["queues"])], "segment_quota": [limit]}
    parameters |= {"late_ids": [], "late_xids": [], "apart": [], "limit": limit}
    return parameters | {"worker_id": WORKER, "grace": timedelta(seconds=15)} | more


def late_parameters(late: Mapping[UUID, str], **more: Any) -> dict[str, Any]:
    """Give the parameters of a claim of late arrivals, whose cursors have passed everything."""
    ids: dict[str, Any] = {"late_ids": list(late), "late_xids": list(late.values())}
    return claim_parameters(datetime(9000, 1, 1, tzinfo=UTC), **ids | more)


def catch_up_parameters(xmax: str, xip: Sequence[str] = (), **more: Any) -> dict[str, Any]:
    """Give the parameters of a catch-up since a snapshot."""
    names = ("queues", "fairness_keys", "priorities", "types")
    parameters: dict[str, Any] = {f"{kind}_{name}": [] for kind in ("known", "ended") for name in names}
    parameters |= {
        "known_at": [],
        "known_id": [],
        "read_to": None,
        "queues": ["default", "other"],
        "types": ["test", "mail"],
    }
    parameters |= {"shared_types": ["test", "mail"], "xmax": xmax, "xip": list(xip), "most": 1000}
    parameters |= {"paused_keys": [], "most_read": 1000}
    return parameters | more


def finish_parameters(ids: Sequence[UUID], **more: Any) -> dict[str, Any]:
    """Give the parameters that end attempts as failed, to be tried again at once."""
    count = len(ids)
    return {
        "ids": list(ids),
        "attempts": [1] * count,
        "statuses": ["pending"] * count,
        "delays": [0.0] * count,
        "ats": [None] * count,
        "outcomes": ["failed"] * count,
        "errors": ['{"type": "E", "message": "m", "traceback": ""}'] * count,
        "fingerprints": ["f"] * count,
        "uncounted": [0] * count,
        "reasons": [None] * count,
        "dead_letter_ids": [None] * count,
        "locks": list(ids),
        "worker_id": WORKER,
    } | more


def dying(ids: Sequence[UUID]) -> dict[str, Any]:
    """Give the parameters that end attempts as dead."""
    count = len(ids)
    return finish_parameters(
        ids, statuses=["dead"] * count, reasons=["exhausted"] * count, dead_letter_ids=[uuid7() for _ in ids]
    )


def complete_parameters(ids: Sequence[UUID]) -> dict[str, Any]:
    """Give the parameters that complete first attempts."""
    return {"ids": list(ids), "attempts": [1] * len(ids), "outputs": ["null"] * len(ids), "worker_id": WORKER}


def heartbeat_parameters(worker_id: str = WORKER, **more: Any) -> dict[str, Any]:
    """Return the parameters of a worker's heartbeat."""
    return {
        "id": worker_id,
        "name": "tester",
        "host": "here",
        "pid": 1,
        "version": "0",
        "queues": ["default"],
        "job_types": ["test"],
        "concurrency": 10,
        "state": "running",
    } | more


def extend_parameters(job_id: UUID, **more: Any) -> dict[str, Any]:
    """Give the parameters that extend a first attempt by a minute."""
    return {
        "job_id": job_id,
        "job_attempt": 1,
        "worker_id": WORKER,
        "extension": timedelta(minutes=1),
        "grace": timedelta(seconds=15),
    } | more


def enqueue_parameters(count: int) -> dict[str, Any]:
    """Give the columns of many jobs."""
    ids = [uuid7() for _ in range(count)]
    return {
        "id": ids,
        "chain_id": ids,
        "type_name": ["test"] * count,
        "chain_type_name": ["test"] * count,
        "input": ["{}"] * count,
        "delays": [None] * count,
        "ats": [None] * count,
    }


def of_jobs(world: World) -> dict[str, Any]:
    """Give the jobs of chains to delete."""
    return {"job_ids": list(world.pending[:BATCH]), "by": "me"}


def of_chains(world: World) -> dict[str, Any]:
    """Give chains to delete."""
    return {"ids": list(world.pending[:BATCH])}


def of_chains_and_jobs(world: World) -> dict[str, Any]:
    """Give both."""
    return of_chains(world) | of_jobs(world) | {"limit": 10}


def find(name: str) -> Case:
    """Return a case by its name."""
    return next(case for case in CASES if case.name == name)


CLAIM = frozenset({"ix_job_claim", "pk_job", "ix_job_ordering", "uq_job_ordering"})
RUNNING = frozenset({"ix_job_running", "pk_job"})
NONE: frozenset[str] = frozenset()
COLUMNS = ("id", "chain_id", "type_name", "chain_type_name", "input")
CHAIN = frozenset({"uq_job_chain", "pk_job"})
SCAN = 1000
PAGE: dict[str, Any] = {"after": UUID(int=2**128 - 1), "limit": 50, "scan_limit": SCAN, "newest_first": True}
JOBS_LIKE = listings.jobs_like(
    Job,
    JobFilter(statuses=[JobStatus.DEAD], types=["none"], queues=["none"], chain_types=["none"], created_before=START),
)
CHAINS_LIKE = listings.chains_like(
    Job,
    ChainFilter(statuses=[JobStatus.DEAD], types=["test"], queues=["default"], top_level=True, created_after=START),
)

CASES = [
    Case("claim", lambda: claims.claim(Job), CLAIM, lambda world: claim_parameters()),
    Case("complete", lambda: completions.complete(Job), PK, lambda world: complete_parameters(world.running[:BATCH])),
    Case(
        "complete_one",
        lambda: completions.complete_one(Job),
        PK,
        lambda world: complete_one_parameters(world, "null"),
        guarded=False,
    ),
    Case(
        "complete_in_session",
        lambda: completions.complete(Job, in_session=True),
        PK,
        lambda world: complete_parameters(world.running[:BATCH]) | {"table_oid": world.table_oid},
        guarded=False,
    ),
    Case("named", lambda: jobs.named(Job, ("id", "status")), PK, lambda world: {"ids": list(world.running[:BATCH])}),
    Case("finish", lambda: completions.finish(Job), PK, lambda world: dying(world.running[:BATCH])),
    Case("heartbeat", lambda: leases.heartbeat(Job), NONE, lambda world: heartbeat_parameters()),
    Case("forget_worker", lambda: leases.forget_worker(Job), RUNNING, lambda world: {"worker_id": WORKER}),
    Case(
        "forget_dead_workers",
        lambda: leases.forget_dead_workers(Job),
        RUNNING,
        lambda world: {"gone_after": timedelta(minutes=6)},
    ),
    Case("extend", lambda: leases.extend(Job), PK, lambda world: extend_parameters(world.running[0])),
    Case("lost", lambda: leases.lost(Job), RUNNING, lambda world: {"limit": BATCH, "ttl": timedelta(seconds=15)}),
    Case(
        "lost_only",
        lambda: leases.lost(Job, only=True),
        RUNNING,
        lambda world: {
            "limit": BATCH,
            "ttl": timedelta(seconds=15),
            "ids": list(world.running[:BATCH]),
            "excluded": list(world.running[:1]),
        },
        examines=2000,  # every running job of a worker, to find those among the ids
    ),
    Case("lost_ended", lambda: leases.lost(Job, ended=True), RUNNING, lambda world: {"limit": BATCH, "worker_id": WORKER}),
    Case("lost_orphans", lambda: leases.lost(Job, orphans=True), RUNNING, lambda world: {"limit": BATCH}, examines=2000),
    Case(
        "enqueue_many", lambda: jobs.enqueue_many(Job, COLUMNS), NONE, lambda world: enqueue_parameters(100), guarded=False
    ),
    Case(
        "lock", lambda: jobs.lock(Job, [NOBODY]), PK, lambda world: {"param_1": list(world.pending[:BATCH])}, guarded=False
    ),
    Case(
        "lock_with_blockers",
        lambda: jobs.lock(Job, [NOBODY], blockers=True),
        PK,
        lambda world: {"param_1": list(world.pending[:BATCH])},
        guarded=False,
    ),
    Case("list_jobs", lambda: listings.jobs(Job, *JOBS_LIKE, **PAGE), PK, guarded=False, examines=SCAN),
    Case("list_chains", lambda: listings.chains(Job, *CHAINS_LIKE, **PAGE), CHAIN, guarded=False, examines=SCAN),
    Case(
        "list_chain_jobs",
        lambda: listings.chain_jobs(Job, NOBODY, after=-1, limit=50, newest_first=False),
        CHAIN,
        guarded=False,
    ),
    Case("list_blockers", lambda: listings.blockers(Job, NOBODY, after=-1, limit=50), CHAIN, guarded=False),
    Case(
        "list_blocked_jobs",
        lambda: listings.blocked_jobs(Job, NOBODY, open_only=True, **PAGE),
        PK,
        guarded=False,
        examines=SCAN,
    ),
    Case(
        "count_continuations",
        lambda: listings.count_continuations(Job, [NOBODY]),
        frozenset({"uq_job_chain"}),
        guarded=False,
    ),
    Case(
        "unknown_types",
        lambda: jobs.unknown_types(Job),
        frozenset({"ix_job_claim"}),
        lambda world: {"queues": ["default", "other"], "types": ["test"], "ttl": timedelta(seconds=15)},
        examines=2000,  # the oldest thousand of each queue
    ),
    Case(
        "unserved_queues",
        lambda: jobs.unserved_queues(Job),
        frozenset({"ix_job_claim"}),
        lambda world: {"ttl": timedelta(seconds=15)},
    ),
    Case("notify_due", lambda: notifications.notify_due(Job), NONE, lambda world: {"queue": "default"}, guarded=False),
    Case(
        "mark_awaited",
        lambda: waiting.mark_awaited(Job),
        PK,
        lambda world: {"awaited_ids": world.pending[:1]},
        guarded=False,
    ),
    Case("connected", lambda: deletion.connected(Job), NONE, of_chains, guarded=False),
    Case("roots", lambda: deletion.roots(Job), NONE, of_chains, guarded=False),
    Case("continuations", lambda: deletion.continuations(Job), NONE, of_chains, guarded=False),
    Case("lock_roots", lambda: deletion.roots(Job, lock=True), NONE, of_chains, guarded=False),
    Case("lock_continuations", lambda: deletion.continuations(Job, lock=True), NONE, of_chains, guarded=False),
    Case("references", lambda: deletion.references(Job), NONE, of_chains_and_jobs, guarded=False),
    Case("delete_edges", lambda: deletion.delete_edges(Job), NONE, of_jobs, guarded=False),
    Case("delete_attempts", lambda: deletion.delete_attempts(Job), NONE, of_jobs, guarded=False),
    Case("dismiss_dead_letters", lambda: deletion.dismiss_dead_letters(Job), NONE, of_jobs, guarded=False),
    Case("delete_jobs", lambda: deletion.delete_jobs(Job), NONE, of_jobs, guarded=False),
    Case("current_jobs", lambda: deletion.current_jobs(Job), NONE, of_chains, guarded=False),
    *CHAIN_CASES,
    *WORKER_CASES,
    *DEDUPLICATION_CASES,
    *EXPLAINING_CASES,
    *STEP_CASES,
    *TRACE_CASES,
    *HEALTH_CASES,
    *RETENTION_CASES,
    *SCHEDULE_CASES,
    *SCHEDULING_CASES,
]

"""The real queue, as the machine drives it: jobs by number, workers by hand, a clock that can be moved."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import bindparam, create_engine, text
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.dialects.postgresql import UUID as PG_UUID
from sqlalchemy.orm import Session

from sa_jobqueue import Deduplicate, Job
from sa_jobqueue.models import WaitFor
from sa_jobqueue.operations.workers import Rescued
from sa_jobqueue.operations.workers import rescue as rescue_lost
from sa_jobqueue.policies.retry import immediately
from sa_jobqueue.statements import blockers, leases
from tests.fixtures.database import SWEEP
from tests.fixtures.workers import ManualWorker
from tests.model.model import NewJob, Once

TYPES = ("a", "b")
QUEUES = ("default", "other")
WORKERS = ("w1", "w2", "w3")
HALF = timedelta(minutes=30)
"""Times that the model counts in whole hours end half an hour off them, so that a second more or less decides nothing."""

_MOVED = {
    "job": ("created_at", "scheduled_at", "started_at", "completed_at", "chain_completed_at", "leased_until"),
    "job_attempt": ("started_at", "ended_at"),
    "dead_letter": ("died_at", "resolved_at"),
    "worker": ("started_at", "heartbeat_at"),
}
_HOURS_UNTIL = "greatest(ceil((extract(epoch from {} - clock_timestamp()) - 60) / 3600), 0)::int"
_READ = {
    "job": f"""
        SELECT id, chain_id, chain_index AS index, type_name AS type, queue, priority, input, status::text, open_blockers,
          has_waiters, CASE WHEN status IN ('pending', 'blocked') THEN {_HOURS_UNTIL.format("scheduled_at")} END AS due,
          attempt, max_attempts, leased_by AS worker, CASE WHEN leased_until IS NOT NULL THEN
            {_HOURS_UNTIL.format("leased_until")} END AS lease, output, completed_by,
          last_error->>'type' AS error, deduplication_key AS key, completed_at IS NOT NULL AS has_ended,
          chain_completed_at IS NOT NULL AS chain_has_ended, chain_status::text FROM job""",
    "job_blocker": "SELECT job_id, blocked_by_chain_id, on_failure AS policy, NOT is_resolved AS open FROM job_blocker",
    "job_attempt": "SELECT job_id, attempt, outcome, worker_id FROM job_attempt",
    "dead_letter": "SELECT job_id, reason, attempts, resolution FROM dead_letter",
    "job_chain": """
        SELECT id, type_name AS type, status::text, output, error->>'type' AS error, completed_at IS NOT NULL AS has_ended,
          length, last_job_id, last_type_name AS last_type, deduplication_key AS key FROM job_chain""",
}


class System:
    """A database, an application and three workers."""

    def __init__(self, url: str) -> None:
        self.engine = create_engine(url)
        self._reader = create_engine(url, isolation_level="AUTOCOMMIT").connect()
        self.manual_worker = {name: ManualWorker(url, name, queues=QUEUES) for name in WORKERS}
        for manual_worker in self.manual_worker.values():
            # A worker's statements never wait for locks: one that does must fail, not hang.
            manual_worker.connection.exec_driver_sql("SET lock_timeout = '60s'")
            manual_worker.connection.commit()
        self.ids: dict[int, UUID] = {}
        self.numbers: dict[Any, int] = {}
        self.steps = 0

    def close(self) -> None:
        for manual_worker in self.manual_worker.values():
            manual_worker.close()
        self._reader.close()
        self._reader.engine.dispose()
        self.engine.dispose()

    def reset(self) -> None:
        """Forget everything that was before."""
        for manual_worker in self.manual_worker.values():
            manual_worker.connection.rollback()
            manual_worker.reset()
        self._reader.exec_driver_sql(SWEEP)
        self.ids.clear()
        self.numbers.clear()

    # Jobs by number.

    def name(self, n: int, salt: int) -> None:
        """Give a number an id. `salt` decides how ids are ordered: not always as they were made."""
        self.ids[n] = UUID(int=salt << 96 | n)
        self.numbers[self.ids[n]] = n

    def id(self, n: int) -> UUID:
        """Return the id of a number, of which there may be no job."""
        return self.ids.get(n, UUID(int=2**127 + n))

    def id_list(self, numbers: Iterable[int]) -> list[UUID]:
        return [self.id(n) for n in numbers]

    def in_order(self, numbers: Iterable[int]) -> list[int]:
        """Return numbers in the order of their ids."""
        return sorted(numbers, key=self.id)

    def numbered(self, ids: Iterable[Any]) -> list[int]:
        return [self.numbers[job_id] for job_id in ids]

    def job(self, new: NewJob, job_by_number: dict[int, Job] | None = None) -> Job:
        """Return the job to write. Its blockers are named by the objects among `job_by_number`, by ids otherwise."""
        waits = [WaitFor((job_by_number or {}).get(wait.chain, self.id(wait.chain)), wait.policy) for wait in new.waits]  # type: ignore[arg-type]
        return Job(
            new.type_name,
            new.n,
            id=self.id(new.n),
            queue=new.queue,
            priority=new.priority,
            delay=timedelta(hours=new.delay) if new.delay else None,
            max_attempts=new.max_attempts,
            timeout=None if new.timeout is None else timedelta(hours=new.timeout) + HALF,
            deduplication_key=new.key,
            blockers=waits,
        )

    def once(self, once: Once) -> Deduplicate:
        window = None if once.window is None else timedelta(hours=once.window) + HALF
        return Deduplicate(once.key, scope=once.scope, window=window, exclude=self.id_list(once.exclude))  # type: ignore[arg-type]

    # Time, silence, and locked rows.

    def advance(self, hours: int) -> None:
        """Let time pass: as the database's clock cannot be moved, everything is moved into the past instead."""
        for name, columns in _MOVED.items():
            moved = ", ".join(f"{column} = {column} - make_interval(hours => {hours})" for column in columns)
            self._reader.exec_driver_sql(f"UPDATE {name} SET {moved}")

    def heartbeat(self, worker: str) -> None:
        parameters = {"id": worker, "name": worker, "host": "here", "pid": 1, "version": "0", "queues": list(QUEUES)}
        parameters |= {"job_types": list(TYPES), "concurrency": 1, "state": "running"}
        self._reader.execute(leases.heartbeat(Job), parameters)

    def forget(self, worker: str) -> None:
        self._reader.execute(text("DELETE FROM worker WHERE id = :id"), {"id": worker})

    @contextmanager
    def holding(self, numbers: AbstractSet[int]) -> Iterator[None]:
        """Hold jobs as an application's open transaction does."""
        if not numbers:
            yield
            return
        with self.engine.connect() as connection:
            statement = text("SELECT 1 FROM job WHERE id = ANY (:ids) ORDER BY id FOR NO KEY UPDATE")
            ids = self.id_list(numbers)
            connection.execute(statement.bindparams(bindparam("ids", type_=ARRAY(PG_UUID()))), {"ids": ids})
            yield
            connection.rollback()

    # Workers.

    def rescue(self, worker: str, *, orphans: bool) -> list[Rescued]:
        """Rescue with a heartbeat timeout of half an hour; rescued jobs are due at once."""
        parameters: dict[str, Any] = {"limit": 100} | ({} if orphans else {"ttl": HALF})
        return rescue_lost(self.manual_worker[worker].connection, Job, parameters, immediately)

    def chains_to_unblock(self) -> set[int]:
        return set(self.numbered(self._reader.scalars(blockers.chains_to_unblock(Job), {"limit": 100})))

    def held_by(self, worker: str) -> set[int]:
        return set(self.numbered(self._reader.scalars(leases.held(Job), {"worker_id": worker})))

    def outcomes(self, n: int) -> list[tuple[int, str, Any, str | None]]:
        rows = self._reader.execute(blockers.outcomes(Job), {"job_id": self.id(n)})
        return [(self.numbers[row[0]], row[2].value, row[3], row[4] and row[4]["type"]) for row in rows]

    # Plain SQL.

    def insert_by_sql(self, session: Session, new: NewJob) -> None:
        statement = text(
            "INSERT INTO job_queue (id, queue, type_name, input, scheduled_at)"
            " VALUES (:id, :queue, :type, cast(:input AS jsonb), now() + make_interval(hours => :delay))"
        )
        parameters = {"id": self.id(new.n), "queue": new.queue, "type": new.type_name, "input": json.dumps(new.n)}
        session.execute(statement, parameters | {"delay": new.delay})

    def change_by_sql(self, session: Session, n: int, status: str) -> bool:
        statement = text("UPDATE job_queue SET status = cast(:status AS job_status) WHERE id = :id RETURNING id")
        return bool(session.execute(statement, {"status": status, "id": self.id(n)}).all())

    # Reading it all.

    def state(self) -> dict[str, Any]:
        """Return what `Model.state` returns."""
        state: dict[str, Any] = {}
        numbers, read = (
            self.numbers,
            {name: self._reader.exec_driver_sql(sql).mappings().all() for name, sql in _READ.items()},
        )
        for row in read["job"]:
            columns = dict(row)
            columns["chain"] = numbers[columns.pop("chain_id")]
            state[f"job {numbers[columns.pop('id')]}"] = columns
        for row in read["job_blocker"]:
            name = f"blocker from {numbers[row['job_id']]} to {numbers[row['blocked_by_chain_id']]}"
            state[name] = {"policy": row["policy"], "open": row["open"]}
        for row in read["job_attempt"]:
            state.setdefault(f"attempts of {numbers[row['job_id']]}", []).append(tuple(row.values())[1:])
        for row in read["dead_letter"]:
            dead_letter = (row["reason"], row["attempts"], str(row["resolution"]))
            state.setdefault(f"dead letters of {numbers[row['job_id']]}", []).append(dead_letter)
        for row in read["job_chain"]:
            columns = dict(row)
            columns["last"] = numbers[columns.pop("last_job_id")]
            state[f"chain {numbers[columns.pop('id')]}"] = columns
        return {name: sorted(value) if isinstance(value, list) else value for name, value in state.items()}


def differences(system: dict[str, Any], model: dict[str, Any]) -> list[str]:
    """Return how the database differs from the model, a line each."""
    messages = []
    for name in sorted(system.keys() | model.keys()):
        here, there = system.get(name), model.get(name)
        if isinstance(here, dict) and isinstance(there, dict):
            messages += [
                f"{name}: {column} is {here.get(column)!r}, should be {there.get(column)!r}"
                for column in sorted(here.keys() | there.keys())
                if here.get(column) != there.get(column)
            ]
        elif here != there:
            messages.append(f"{name}: is {here!r}, should be {there!r}")
    return messages


def violations(state: dict[str, Any], before: dict[str, Any]) -> list[str]:
    """Return which invariants a state breaks, alone and after the one before; the model has no say here."""
    jobs = {name: job for name, job in state.items() if name.startswith("job ")}
    messages = []
    for name, job in jobs.items():
        n = name.removeprefix("job ")
        blocker_states = [
            (key.rpartition(" ")[2], blocker) for key, blocker in state.items() if key.startswith(f"blocker from {n} to ")
        ]
        waits = [(chain, blocker) for chain, blocker in blocker_states if blocker["open"]]
        if job["open_blockers"] != len(waits):
            messages.append(f"{name} counts {job['open_blockers']} open blockers, it has {len(waits)}")
        if not job["has_ended"] and (job["status"] == "blocked") != bool(waits):
            messages.append(f"{name} is {job['status']} with {len(waits)} open edges")
        for chain, blocker in waits if job["status"] == "blocked" else []:
            root, outcome = jobs[f"job {chain}"], state[f"chain {chain}"]["status"]
            decided = root["chain_has_ended"] and (outcome == "completed" or blocker["policy"] != "wait")
            if decided and not root["has_waiters"]:
                messages.append(f"{name} waits for chain {chain}, which has ended, and nobody will tell it")
        if (job["status"] == "running") != (job["worker"] is not None):
            messages.append(f"{name} is {job['status']} leased by {job['worker']}")
        history = state.get(f"attempts of {n}", [])
        counted = len(history) + (job["status"] == "running" or job["completed_by"] is not None)
        if counted != job["attempt"] or len({attempt for attempt, *_ in history}) != len(history):
            messages.append(f"{name} has begun {job['attempt']} attempts, of which {counted} are known: {history}")
        unresolved = [letter for letter in state.get(f"dead letters of {n}", []) if letter[2] == "None"]
        if len(unresolved) > (job["status"] == "dead"):
            messages.append(f"{name} is {job['status']} with {len(unresolved)} open dead letters")
        if (was := before.get(name)) is not None:
            if job["attempt"] < was["attempt"] or job["max_attempts"] < was["max_attempts"]:
                messages.append(f"{name} went back to attempt {job['attempt']} of {job['max_attempts']}")
            if was["status"] in {"completed", "cancelled"} and job["status"] != was["status"]:
                messages.append(f"{name} was {was['status']} and is {job['status']}")
    return messages + _chains_violated(state, list(jobs.values()))


def _chains_violated(state: dict[str, Any], jobs: Sequence[dict[str, Any]]) -> list[str]:
    messages = []
    keys = [(job["type"], job["key"]) for job in jobs if job["key"] and job["index"] == 0 and not job["chain_has_ended"]]
    if len(set(keys)) < len(keys):
        messages.append(f"open chains share a key: {keys}")
    for chain in {job["chain"] for job in jobs}:
        chain_jobs = sorted((job for job in jobs if job["chain"] == chain), key=lambda job: job["index"])
        last = chain_jobs[-1]
        if [job["index"] for job in chain_jobs] != list(range(len(chain_jobs))):
            messages.append(f"chain {chain} has gaps: {[job['index'] for job in chain_jobs]}")
        if any(job["status"] != "completed" for job in chain_jobs[:-1]):
            messages.append(f"chain {chain} went on after a job that has not completed")
        if chain_jobs[0]["chain_has_ended"] != last["has_ended"]:
            messages.append(f"chain {chain} has ended: {chain_jobs[0]['chain_has_ended']}, its last job is {last['status']}")
        if state[f"chain {chain}"]["status"] != last["status"]:
            messages.append(
                f"chain {chain} is shown as {state[f'chain {chain}']['status']}, its last job is {last['status']}"
            )
    return messages


def stuck(state: dict[str, Any]) -> list[str]:
    """Return the jobs that have not ended, and do not wait for a chain that was given up and that they chose to wait for."""

    def is_excused(n: int) -> bool:
        job = state[f"job {n}"]
        if job["status"] != "blocked":
            return bool(job["has_ended"])
        for name, blocker in state.items():
            if name.startswith(f"blocker from {n} to ") and blocker["open"]:
                chain = state["chain " + name.rpartition(" ")[2]]
                if chain["has_ended"]:
                    if chain["status"] != "completed" and blocker["policy"] == "wait":
                        return True
                elif is_excused(chain["last"]):
                    return True
        return False

    numbers = [int(name.removeprefix("job ")) for name in state if name.startswith("job ")]
    return [f"job {n} is stuck: {state[f'job {n}']}" for n in numbers if not is_excused(n)]

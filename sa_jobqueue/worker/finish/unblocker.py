"""Unblocks the jobs that waited for ended chains, in parallel with the completions that ended them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from typing import Any

from sa_jobqueue.db.splitting import in_parts
from sa_jobqueue.db.timeouts import waited
from sa_jobqueue.events import JobDied, JobUnblocked
from sa_jobqueue.models.base import lowest_id
from sa_jobqueue.operations.blockers import ROUNDS, Moved, Unblocked, unblock
from sa_jobqueue.statements import blockers, notifications
from sa_jobqueue.statements._parts import BATCH
from sa_jobqueue.types import ENDED, DeadReason, JobId, JobStatus, RefusedWrite
from sa_jobqueue.worker.component import Component
from sa_jobqueue.worker.quarantine import PAUSES
from sa_jobqueue.worker.shared import Part, Shared

_HELD_REST = 0.02
"""Seconds until the next try when all remaining chains are locked; doubled each time, up to `_LONGEST_REST`."""
_LONGEST_REST = 0.32
"""Maximum seconds between the release of a long-held lock and the next try."""


class Unblocker(Part, Component):
    """Processes ended chains that have waiters, many per transaction, and wakes the workers that now have work.

    A crash loses the queue here, not its record in the database: the next rescue scan of any worker finds it. Two may
    overlap: a chain is processed under its root's lock by one of them. Woken by each end of a chain. A job that cannot be
    unblocked is quarantined; the others that wait for the chain are unblocked, and the chain is tried again.
    """

    name = "unblocker"

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self._chains: dict[JobId, JobId | None] = {}
        self._later: dict[JobId, float] = {}
        """Chains that cannot be processed now, each with the time of the next try by the monotonic clock."""
        self._due: set[str] = set()
        self._chains_to_unblock = blockers.chains_to_unblock(self._model)
        self._searches = self._notifies = False
        self._search_position: JobId | None = None
        """The last chain of the page before, while a search is under way."""
        self._held_rest = _HELD_REST
        self._arrived = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()

    def put(self, chain_id: JobId) -> None:
        """Process a chain soon."""
        if chain_id in self._later:
            return
        self._chains.setdefault(chain_id)
        self._wake()

    def put_ended(self, rows: Iterable[Sequence[Any]]) -> set[JobId]:
        """Return the jobs of rows that were written, and process the chains that ended and have waiters."""
        job_ids = set()
        for job_id, status, chain_id, has_waiters in rows:
            job_ids.add(job_id)
            if has_waiters and status is not None and status in ENDED:
                self.put(chain_id)
        return job_ids

    def notify_due(self, queue: str) -> None:
        """Wake this worker and others for a job of a queue, or of a part of one, that this worker has just made due."""
        self._signals.due([queue])
        self._due.add(queue)
        self._wake()

    def notify_workers(self) -> None:
        """Wake other workers: this one released jobs, or leaves due jobs to them."""
        self._notifies = True
        self._wake()

    def search(self) -> None:
        """Search soon for ended chains whose dependants are still blocked: no worker completed them, or it died."""
        self._searches = True
        self._wake()

    def _wake(self) -> None:
        self._empty.clear()
        self._arrived.set()

    async def drained(self) -> None:
        """Wait until all queued chains are processed."""
        await self._empty.wait()

    async def run(self) -> None:
        """Process what arrives until cancelled."""
        while True:
            searches = self._searches or self._search_position is not None
            if not (self._chains or self._due or self._notifies or searches):
                self._empty.set()
                self._arrived.clear()
                await self._idle()
            if searches:
                await self._find()
            if self._chains or self._due or self._notifies:
                await self.flush()

    async def _find(self) -> None:
        """Read one page. The next is read after a flush: a large backlog takes longer to read than a page to process."""
        begins = self._search_position is None
        if begins:
            self._searches = False
        parameters = {"limit": BATCH} if begins else {"limit": BATCH, "after": self._search_position}
        try:
            async with self._transactions.begin() as connection:
                page = list(await connection.scalars(self._chains_to_unblock, parameters))
        except BaseException:
            self._searches = self._searches or begins
            raise
        self._search_position = page[-1] if len(page) == BATCH else None
        for chain_id in page:
            if chain_id not in self._later:
                self._chains.setdefault(chain_id)

    async def _idle(self) -> None:
        """Wait until there is work, or until a chain that failed is due to be tried again."""
        due = min(self._later.values(), default=None)
        await waited(self._arrived, None if due is None else due - time.monotonic())
        now = time.monotonic()
        for chain_id in [chain_id for chain_id, due in self._later.items() if due <= now]:
            del self._later[chain_id]
            self.put(chain_id)

    async def flush(self) -> None:
        """Process one batch and report the result. A batch that fails stays queued."""
        batch = {chain_id: self._chains[chain_id] for chain_id in list(self._chains)[:BATCH]}

        async def some(chain_ids: Sequence[JobId]) -> bool:
            return await self._write({chain_id: batch[chain_id] for chain_id in chain_ids})

        moved, refused = await in_parts(list(batch), some) if batch else ([await self._write({})], [])
        for chain_id, error in refused:
            await self._write_by_job(chain_id, batch[chain_id], error)
        if refused or any(moved):
            self._held_rest = _HELD_REST
        elif self._chains:
            await self._rest()

    async def _write(self, chains: dict[JobId, JobId | None], *, only: Sequence[JobId] | None = None) -> bool:
        """Process chains in one transaction, and keep what remains of them; return whether anything moved."""
        due, notifies, outcome = list(self._due), self._notifies, Unblocked()
        async with self._transactions.begin() as connection:
            if notifies:
                await connection.execute(notifications.notify_unblock(self._model))
            for queue in due:
                await connection.execute(notifications.notify_due(self._model), {"queue": queue})
            if chains:
                excluded = self._quarantine.quarantined(RefusedWrite.UNBLOCK)
                outcome = await connection.run_sync(unblock, self._model, chains, excluded=excluded, only=only)
        self._due.difference_update(due)
        self._notifies = self._notifies and not notifies
        for chain_id in chains:
            self._chains.pop(chain_id, None)
        for chain_id in outcome.retained:
            self._process_later(chain_id)
        for chain_id, after in outcome.unfinished.items():
            self._chains.setdefault(chain_id, after)
        for moved in outcome.moved:
            self._report(moved)
        await self._quarantine.written(RefusedWrite.UNBLOCK, [*outcome.finished, *(moved.job_id for moved in outcome.moved)])
        return bool(outcome.moved or outcome.finished)

    async def _write_by_job(self, chain_id: JobId, after: JobId | None, error: Exception) -> None:
        """Unblock the jobs that wait for a chain in parts; quarantine those that fail alone, or else the chain."""
        parameters = {"chains": [chain_id], "after": after or lowest_id(self._model.__jobqueue__), "limit": BATCH * ROUNDS}
        async with self._transactions.begin() as connection:
            rows = (await connection.execute(blockers.waiting(self._model), parameters)).all()
        quarantined = set(self._quarantine.quarantined(RefusedWrite.UNBLOCK))
        job_ids = [row.job_id for row in rows if row.job_id not in quarantined]

        async def some(ids: Sequence[JobId]) -> bool:
            return await self._write({chain_id: after}, only=ids)

        await self._quarantine.write(RefusedWrite.UNBLOCK, job_ids, some, otherwise=(chain_id, error))
        if self._quarantine.is_full or self._quarantine.is_quarantined(RefusedWrite.UNBLOCK, chain_id):
            self._chains.pop(chain_id, None)
            self._process_later(chain_id)

    def _process_later(self, chain_id: JobId) -> None:
        pause = self._quarantine.retry_in(RefusedWrite.UNBLOCK) or PAUSES.base.total_seconds()
        self._later[chain_id] = time.monotonic() + pause

    async def _rest(self) -> None:
        """Wait until something arrives, or until the locks on the remaining chains may be free."""
        self._arrived.clear()
        await waited(self._arrived, self._held_rest)
        self._held_rest = min(2 * self._held_rest, _LONGEST_REST)

    def _report(self, moved: Moved) -> None:
        if moved.status is JobStatus.DEAD:
            self._signals.ended(None)
            self._events.emit(JobDied(moved.job_id, moved.type_name, moved.attempt, DeadReason.BLOCKER_FAILED, None))
        else:
            self._signals.due([moved.queue_key.text])
            self._events.emit(JobUnblocked(moved.job_id, moved.type_name, moved.attempt))

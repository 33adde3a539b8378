"""Writes the results of attempts in chains of several jobs, with the continuations."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import chain
from typing import Any, Final

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

from sa_jobqueue.db.splitting import cause_of, in_parts, is_of_a_row
from sa_jobqueue.errors import CompletionRefusedError, InvalidJobError, JobQueueError
from sa_jobqueue.models import JobMixin
from sa_jobqueue.operations.completions import complete_attempts, with_roots
from sa_jobqueue.operations.faults import fault_of
from sa_jobqueue.operations.rows import Group, arrays, group_by_columns, uncarried
from sa_jobqueue.policies.fairness import ANY_QUEUE, QueueKey
from sa_jobqueue.statements import chains
from sa_jobqueue.worker.finish.outcomes import Completed, WriteOutcome, of_error
from sa_jobqueue.worker.finish.unblocker import Unblocker
from sa_jobqueue.worker.shared import Part, Shared

_PATIENCE_MILLISECONDS: Final = 50
"""How long a continuation with blockers waits for their locks before it is tried again."""


class ChainWriter(Part):
    """Writes one statement for all of a batch that can go together, and a short transaction for each that cannot."""

    def __init__(self, shared: Shared, unblocker: Unblocker) -> None:
        super().__init__(shared)
        self._unblocker = unblocker

    async def write(self, connection: AsyncConnection, ends: Sequence[Completed], outcome: WriteOutcome) -> None:
        """Complete attempts, each fenced; those neither written nor failed are locked elsewhere, or lost."""
        last = [end for end in ends if isinstance(end.result, str)]
        going_on = {id(end.result): end for end in ends if isinstance(end.result, JobMixin) and not end.result._blockers}
        # A default of the application may fail, of one of them.
        groups, unprepared = await in_parts(list(going_on.values()), self._grouped, splits=lambda error: True)
        for names, group in chain.from_iterable(groups):
            # Those that end here travel with the first of them; their place in the arrays is all the same.
            batch = [*(going_on[id(job)] for job in group), *last]
            last = []
            await self._write_parts(connection, batch, names, outcome)
        if last:
            await self._write_parts(connection, last, {}, outcome)
        waiting = [end for end in ends if isinstance(end.result, JobMixin) and end.result._blockers]
        for end in [*waiting, *(end for end, _ in unprepared)]:
            await self._write_alone(end, outcome)
        for end in going_on.values():
            if end.job.id in outcome.ids:
                self._notify_due(end)

    async def _grouped(self, ends: Sequence[Completed]) -> list[Group]:
        """Group continuations by the columns that they set, which sets defaults. Raises: their errors; InvalidJobError."""
        results = [end.result for end in ends]
        groups = group_by_columns(self._model, results)
        for names, group in groups:
            if key := uncarried(self._model, names, group):
                raise InvalidJobError(key, "cannot be an element of an array")
        return groups

    async def _write_parts(
        self, connection: AsyncConnection, ends: Sequence[Completed], columns: dict[str, str], outcome: WriteOutcome
    ) -> None:
        """Complete attempts with one statement; if a row makes it fail, with as many as needed."""
        id_parts, refused = await in_parts(ends, partial(self._execute, connection, columns))
        outcome.ids.update(*id_parts)
        for end, error in refused:
            if isinstance(end.result, JobMixin):
                # The cause may be the continuation: a duplicate id, a column that does not fit.
                await self._write_alone(end, outcome)
            else:
                outcome.refuse(end, error)

    async def _execute(self, connection: AsyncConnection, columns: dict[str, str], ends: Sequence[Completed]) -> set[Any]:
        going_on = [end for end in ends if isinstance(end.result, JobMixin)]
        following: dict[str, Any] = {}
        if going_on:
            values = arrays(self._model, columns, [end.result for end in going_on], connection.dialect)
            following = {f"next_{name}": column for name, column in values.items()}
            following["parents"] = [end.job.id for end in going_on]
        result = await connection.execute(
            chains.complete(self._model, tuple(columns) if going_on else ()),
            {
                "ids": [end.job.id for end in ends],
                "attempts": [end.job.attempt for end in ends],
                "outputs": [end.result if isinstance(end.result, str) else None for end in ends],
                "locks": with_roots(ends),
                "worker_id": self._worker_id,
            }
            | following,
        )
        return self._unblocker.put_ended(result.all())

    async def _write_alone(self, end: Completed, outcome: WriteOutcome) -> None:
        """Write one result as a handler's own commit would: lock what its continuation waits for, with a short timeout."""
        async with AsyncSession(self._transactions, expire_on_commit=False) as session:
            try:
                await session.execute(text(f"SET LOCAL lock_timeout = '{_PATIENCE_MILLISECONDS}ms'"))
                results, worker_id = [(end.job, end.result)], self._worker_id
                completion = await session.run_sync(complete_attempts, results, worker_id=worker_id, model=self._model)
                if completion.unwritten:
                    return
                await session.commit()
            except Exception as error:
                cause = error.__cause__ if isinstance(error, CompletionRefusedError) else error
                if cause is not None and is_of_a_row(cause):
                    self._fail(end, error, outcome)
                # Otherwise it is tried again: rows are locked, or the connection failed, of which the statement that
                # looks for locked rows finds out. It may also be another connection, of a listener of the application.
                return
        outcome.ids.add(end.job.id)
        self._notify_due(end)

    def _fail(self, end: Completed, error: Exception, outcome: WriteOutcome) -> None:
        """Fail an attempt whose continuation cannot be written, naming the column that is the cause."""
        names_it = isinstance(error, JobQueueError) and getattr(error, "field", None) != "job"
        if isinstance(end.result, JobMixin) and not names_it:
            error = fault_of(end.result, error) or error
        outcome.failed[end.job.id] = of_error(end.job, cause_of(error), None)

    def _notify_due(self, end: Completed) -> None:
        if isinstance(end.result, JobMixin):
            queue = end.result.queue  # None where the database has decided
            self._unblocker.notify_due(QueueKey(queue, end.result.fairness_key).text if queue else ANY_QUEUE)

"""Steps of an attempt that wait for several jobs, events and timers: for all of them, or for the first."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from sa_jobqueue.context import ChildJob, EventWait, Results, StepRequest, Timer, Winner
from sa_jobqueue.errors import EventTimeoutError, InvalidOptionError, LostAttemptError, StepOutputError
from sa_jobqueue.errors.bounds import check_duration
from sa_jobqueue.models.event import check_event
from sa_jobqueue.operations.chains import cancel_chains
from sa_jobqueue.operations.writer import by_session, write_many
from sa_jobqueue.payloads import Codec
from sa_jobqueue.statements import steps
from sa_jobqueue.statements._parts import BATCH
from sa_jobqueue.types import JobStatus, StepKind
from sa_jobqueue.worker.run.step_failures import Caught, check_catch
from sa_jobqueue.worker.run.steps import UNSENT, AttemptSteps, Busy, Place, check_child, codec_of, end_of_child, shown

_FAILED = frozenset({JobStatus.DEAD, JobStatus.CANCELLED})


class _Member(NamedTuple):
    place: Place
    kind: StepKind
    codec: Codec[Any]
    catch: Caught
    request: Any


class StepGroups(AttemptSteps):
    """The steps of one attempt, with those that wait for several."""

    def all(self, requests: Sequence[StepRequest[Any]], *, return_exceptions: bool) -> Any:
        """Return the results of all requests: of an asynchronous handler, a coroutine."""
        return self._run(self._all(self._members("all", requests), return_exceptions=return_exceptions))

    def first(self, name: str, requests: Sequence[StepRequest[Any]], *, key: str | int | None, losers: str) -> Any:
        """Return the request that is over first, with its result: of an asynchronous handler, a coroutine."""
        if losers not in {"cancel", "leave"}:
            raise InvalidOptionError("losers", f"must be 'cancel' or 'leave', got {losers!r}")
        if not requests:
            raise InvalidOptionError("requests", "must have at least one ChildJob, EventWait or Timer to wait for")
        return self._run(self._first(self._enter(name, key), self._members("first", requests), losers))

    def _members(self, call: str, requests: Sequence[StepRequest[Any]]) -> list[_Member]:
        self._refuse_in_batch(call)
        return [self._member(call, request) for request in requests]

    def _member(self, call: str, request: Any) -> _Member:
        catch: Caught = ()
        match request:
            case ChildJob():
                check_child(call, request.handler, request.options)
                kind, codec, catch = StepKind.RUN, request.handler.job_type.chain_output, check_catch(request.catch)
            case EventWait():
                check_event(request.event)
                check_duration("timeout", request.timeout, or_zero=True)
                kind, codec = StepKind.WAIT, codec_of(request.name, None, request.output)
            case Timer():
                check_duration("duration", request.duration, or_zero=True)
                kind, codec = StepKind.SLEEP, codec_of(request.name, None, None)
            case _:
                reason = f"must be a ChildJob, an EventWait or a Timer, got a {type(request).__name__}"
                raise InvalidOptionError("requests", f"{reason}. `ctx.run(...)` and the like begin to wait immediately")
        return _Member(self._enter(request.name, request.key), kind, codec, catch, request)

    async def _begin(self, members: list[_Member]) -> dict[Place, Any]:
        """Enqueue the jobs and record the requests that are new, in one transaction; return the ids of the jobs."""
        records = {member.place: await self._find(member.place, member.kind) for member in members}
        child_ids = {place: record.child_chain_id for place, record in records.items() if record is not None}
        new = [member for member in members if records[member.place] is None]
        requests = {member.place: member.request for member in new if member.kind is StepKind.RUN}
        children = {
            place: self._new_child(request.handler, request.payload, request.options) for place, request in requests.items()
        }
        if new:
            await self._called_store(new[0].place, partial(self._record_begun, new, children), in_transaction=True)
        return child_ids | {place: child.id for place, child in children.items()}

    def _record_begun(self, members: list[_Member], children: dict[Place, Any], connection: Any) -> None:
        places, jobs = list(children), list(children.values())
        if jobs:
            self._refuse_keys_of_ancestors(places[0], jobs, connection)
        for first in range(0, len(jobs), BATCH):
            batch = slice(first, first + BATCH)
            by_session(write_many, connection, jobs[batch])
            self._record_children(places[batch], [job.id for job in jobs[batch]], None, connection)
        for place, kind, _, _, request in members:
            if kind is StepKind.SLEEP:
                self._record(connection, kind=kind, place=place, took=request.duration)
            elif kind is StepKind.WAIT:
                wait = {"took": request.timeout, "event": request.event}
                self._record(connection, kind=kind, place=place, is_over=False, **wait)

    def _record_children(
        self, places: Sequence[Place], child_ids: list[Any], outputs: list[str] | None, connection: Any
    ) -> None:
        """Record that the results of jobs are waited for, or, with `outputs`, how they ended."""
        job = self._context.job
        parameters = {
            "job_id": job.id,
            "job_attempt": job.attempt,
            "worker_id": self._context.worker_id,
            "names": [name for name, _ in places],
            "keys": [key for _, key in places],
            "child_chain_ids": child_ids,
            "outputs": [None] * len(places) if outputs is None else outputs,
            "is_over": outputs is not None,
        }
        if not connection.execute(steps.record_children(self._store.model), parameters).all():
            raise LostAttemptError(job.id, job.attempt)

    async def _all(self, members: list[_Member], *, return_exceptions: bool) -> Results[Any]:
        async with self._in_progress():
            child_ids = await self._begin(members)
        values = await self._values_of_children([member for member in members if member.kind is StepKind.RUN], child_ids)
        for member in members:
            if member.kind is StepKind.SLEEP:
                await self._sleep(member.place, member.request.duration)
                values[member.place] = None
            elif member.kind is StepKind.WAIT:
                request = member.request
                try:
                    value = await self._wait(member.place, member.codec, request.event, request.timeout)
                except EventTimeoutError as error:
                    value = error
                values[member.place] = value
        results = Results(values[member.place] for member in members)
        errors = [value for value in results if isinstance(value, Exception)]
        if errors and not return_exceptions:
            raise errors[0]
        return results

    async def _values_of_children(self, members: list[_Member], child_ids: dict[Place, Any]) -> dict[Place, Any]:
        """Return the outputs and the errors of jobs when all have ended.

        The attempt ends until one of them ends: at first the last that was enqueued, later any. The others do not wake it.
        So 10,000 jobs wake it about twice if they end in their order, and about ten times in any other order.
        """
        values: dict[Place, Any] = {}
        is_first = True
        for member in members:
            record = await self._find(member.place, member.kind)
            is_first = is_first and record is None
            if record is not None and record.is_over:  # how it died
                stored = self._type.open("output", record.output)
                values[member.place] = self._caught_value_of(member, record.child_chain_id, stored)
        while waiting := [member for member in members if member.place not in values]:
            ids = [child_ids[member.place] for member in waiting]
            look = partial(self._open_child, ids, is_first)
            if (child := await self._called_store(waiting[0].place, look)) is not None:
                place = child.name, child.key
                self._children[place] = child.child_chain_id
                await self._awaited(place, partial(self._wait_for_child, child.child_chain_id))
                self._children.pop(place)
                continue
            for first in range(0, len(waiting), BATCH):
                read = partial(self._read_results, waiting[first : first + BATCH], child_ids)
                values |= await self._called_store(waiting[first].place, read, in_transaction=True)
        return values

    def _open_child(self, ids: list[Any], is_first: bool, connection: Any) -> Any:
        parameters = {"job_id": self._context.job.id, "ids": ids, "any": not is_first}
        return connection.execute(steps.open_child(self._store.model), parameters).first()

    def _wait_for_child(self, child_id: Any, connection: Any) -> Any:
        """End the attempt until a chain ends, or return that it has ended."""
        roots = {child_id, *self._children.values()}
        rows = self._lock_roots(roots, connection)
        is_open = any(row.id == child_id and not row.ended for row in rows)
        return self._end_waiting(roots, rows, connection) if is_open else True

    def _read_results(self, members: list[_Member], child_ids: dict[Place, Any], connection: Any) -> dict[Place, Any]:
        """Return the outputs and the errors of jobs that have ended, and record how they died: a redrive may change that."""
        results = self._results(members, child_ids, connection)
        failed = [member for member in members if results[member.place]["status"] != JobStatus.COMPLETED]
        if failed:
            rows = self._lock_roots({child_ids[member.place] for member in failed}, connection)
            reopened = {row.id for row in rows if not row.ended}
            results |= self._results(failed, child_ids, connection)
            results = {place: result for place, result in results.items() if child_ids[place] not in reopened}
            places = [
                member.place
                for member in failed
                if member.place in results and results[member.place]["status"] != JobStatus.COMPLETED
            ]
            if places:
                outputs = [self._sealed(results[place]) for place in places]
                self._record_children(places, [child_ids[place] for place in places], outputs, connection)
        ended = [member for member in members if member.place in results]
        return {
            member.place: self._caught_value_of(member, child_ids[member.place], results[member.place]) for member in ended
        }

    def _results(self, members: list[_Member], child_ids: dict[Place, Any], connection: Any) -> dict[Place, dict[str, Any]]:
        ids = [child_ids[member.place] for member in members]
        rows = {row.id: row for row in connection.execute(steps.child_results(self._store.model), {"ids": ids})}
        return {
            member.place: end_of_child(child_id, rows.get(child_id), member.request.handler.job_type)
            for member, child_id in zip(members, ids, strict=True)
        }

    def _caught_value_of(self, member: _Member, child_id: Any, result: dict[str, Any]) -> Any:
        try:
            return self._value_of(member.place, member.codec, member.catch, child_id, result)
        except StepOutputError:
            raise
        except Exception as error:  # the job's, or a class in `catch`
            return error

    async def _first(self, place: Place, members: list[_Member], losers: str) -> Winner[Any]:
        async with self._in_progress():
            record = await self._find(place, StepKind.STEP)
            if record is not None:
                return await self._recorded_winner(place, members, self._type.open("output", record.output))
            child_ids = await self._begin(members)
        look = partial(self._look_for_first, place, members, child_ids, losers)
        return self._winner(await self._awaited(place, look))

    def _winner(self, winner: tuple[Place, Any]) -> Winner[Any]:
        (name, key), value = winner
        if isinstance(value, Exception):
            raise value
        return Winner(name, key, value)

    async def _recorded_winner(self, place: Place, members: list[_Member], stored: Any) -> Winner[Any]:
        member = next((member for member in members if member.place == (stored["name"], stored["key"])), None)
        record = None if member is None else await self._find(member.place, member.kind)
        if member is None or record is None:
            recorded = shown((stored["name"], stored["key"]))
            raise StepOutputError(*place, f"is recorded as won by {recorded}, which is no longer among its requests")
        value: Any = None
        if member.kind is StepKind.RUN:
            value = self._caught_value_of(member, record.child_chain_id, self._type.open("output", record.output))
        elif member.kind is StepKind.WAIT and not record.has_output:
            value = EventTimeoutError(member.request.event, *member.place)
        elif member.kind is StepKind.WAIT:
            value = self._decode(member.place, member.codec, record.output)
        return self._winner((member.place, value))

    def _look_for_first(
        self, place: Place, members: list[_Member], child_ids: dict[Place, Any], losers: str, connection: Any
    ) -> Any:
        """Record and return the request that is over, with its result, or end the attempt until one is.

        Senders of the events are shut out meanwhile, and the roots of the jobs are locked, as for one request.
        """
        model, job = self._store.model, self._context.job
        roots = {child_ids[member.place] for member in members if member.kind is StepKind.RUN}
        rows = self._lock_roots(roots | set(self._children.values()), connection)
        going_on = {row.id for row in rows if not row.ended}
        # After the roots, for which others may make it wait: a sender that holds one of them would wait for this one.
        for event in sorted({member.request.event for member in members if member.kind is StepKind.WAIT}):
            if not connection.execute(steps.lock_event(model), {"event": event}).scalar_one():
                raise Busy
        records = {(row.name, row.key): row for row in connection.execute(steps.recorded(model), {"job_id": job.id})}
        times = []
        for member in members:
            record = records[member.place]
            value = UNSENT
            if member.kind is StepKind.RUN:
                if record.child_chain_id not in going_on:
                    job_type = member.request.handler.job_type
                    result = self._record_child(member.place, record.child_chain_id, job_type, connection)
                    value = self._caught_value_of(member, record.child_chain_id, result)
            elif member.kind is StepKind.WAIT:
                value = self._arrived(member.place, member.codec, record, member.request, connection)
                times.append(record.deadline)
            else:
                value = None if record.is_over else UNSENT
                times.append(record.completed_at)
            if value is not UNSENT:
                self._record_winner(place, member, members, connection)
                open_ids = sorted(roots & going_on, key=str) if losers == "cancel" else []
                for first in range(0, len(open_ids), BATCH):
                    cancel = partial(cancel_chains, children=True, model=model)
                    by_session(cancel, connection, open_ids[first : first + BATCH])
                return member.place, value
        return self._end_waiting(roots | set(self._children.values()), rows, connection, at=min(times, default=None))

    def _record_winner(self, place: Place, winner: _Member, members: list[_Member], connection: Any) -> None:
        output = self._sealed(dict(zip(("name", "key"), winner.place, strict=True)))
        self._record(connection, kind=StepKind.STEP, place=place, output=output)
        losers = [member.place for member in members if member is not winner]
        parameters = {"names": [name for name, _ in losers], "keys": [key for _, key in losers]}
        connection.execute(steps.delete_places(self._store.model), {"job_id": self._context.job.id, **parameters})

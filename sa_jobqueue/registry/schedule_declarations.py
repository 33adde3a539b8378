"""What a `JobQueue` has for schedules: declared beside their handlers, their payloads checked by the handlers' types."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Protocol, TypeVar
from uuid import UUID

from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.registry.job_types import JobType
from sa_jobqueue.registry.schedules import MisfirePolicy, Schedule

_SAMPLE: Final = datetime(2000, 1, 1, tzinfo=UTC)


class Schedulable(Protocol):
    """A registered handler, as far as its schedules go."""

    @property
    def job_type(self) -> JobType:
        """What is known of its type."""


HandlerT = TypeVar("HandlerT", bound=Schedulable)


class Scheduling:
    """Declares schedules. Nothing is written until a worker starts or `sync_schedules` is called."""

    model: Any

    def __init__(self) -> None:
        super().__init__()
        self._schedules: dict[str, Schedule] = {}

    def __getitem__(self, type_name: str, /) -> Any:
        """Return a handler by its type's name."""
        raise NotImplementedError

    @property
    def schedules(self) -> tuple[Schedule, ...]:
        """What is declared here, for `sync_schedules`."""
        return tuple(self._schedules.values())

    def schedule(
        self,
        name: str,
        *,
        cron: str,
        handler: Schedulable | str,
        payload: Any = None,
        time_zone: str = "UTC",
        fire_time_field: str | None = None,
        misfire_policy: MisfirePolicy | str = MisfirePolicy.ONE,
        catch_up: int = 100,
        grace: timedelta = timedelta(minutes=1),
        overlap: bool = True,
        **options: Any,
    ) -> Schedule:
        """Declare that a handler's job is enqueued again and again; any number of workers do it once.

        `name`: of the row that workers make of it; it stays when the declaration is gone, until somebody deletes it.
        `cron`, `time_zone`, and the rest: as of `Schedule`. `payload`: as for `handler.job`; with `fire_time_field`, which
        is the payload's field for the time it is fired for, a mapping of the other fields will do.
        `options`: `queue`, `priority`, `max_attempts`, `timeout`, `rate_cost` of its jobs, the handler's own unless given.
        Raises: InvalidOptionError, UnknownJobTypeError, InvalidPayloadError, InvalidJobError. Nothing is declared then.
        """
        registered = self[handler if isinstance(handler, str) else handler.job_type.name]
        kind: JobType = registered.job_type
        unknown = options.keys() - {"queue", "priority", "max_attempts", "timeout", "rate_cost"}
        if unknown:
            raise InvalidOptionError(min(unknown), "is no option of a schedule's jobs")
        if name in self._schedules:
            raise InvalidOptionError("name", f"{name!r} is declared already: a name is one schedule")
        if fire_time_field is not None:
            given = (
                payload if isinstance(payload, Mapping) else {} if payload is None else kind.input.encode("payload", payload)
            )
            if not isinstance(given, Mapping):
                raise InvalidOptionError("fire_time_field", "needs a payload that is an object")
            payload = kind.input.decode("payload", {**given, fire_time_field: _SAMPLE.isoformat()})
        # A throw-away job checks all of it as any other; the application's factory is asked for jobs alone.
        never_written: Any = "-" if self.model.__jobqueue__.id_type == "text" else UUID(int=0)
        job = registered.job(payload, id=never_written, **options)
        declared = Schedule(
            name=name,
            cron=cron,
            time_zone=time_zone,
            type_name=kind.name,
            queue=job.queue,
            priority=job.priority,
            max_attempts=job.max_attempts,
            timeout=job.timeout,
            rate_cost=job.rate_cost,
            input=job.input
            if fire_time_field is None
            else {key: value for key, value in job.input.items() if key != fire_time_field},
            input_version=kind.version,
            fire_time_field=fire_time_field,
            misfire_policy=misfire_policy,
            catch_up=catch_up,
            grace=grace,
            overlap=overlap,
        )
        self._schedules[name] = declared
        return declared

    def cron(self, expression: str, *, name: str | None = None, **options: Any) -> Callable[[HandlerT], HandlerT]:
        """Declare a schedule of the handler it is written above; `name` is the handler's own unless given.

        `expression`, `options`: as `cron` and the rest of `schedule`. Raises: as `schedule`.
        """

        def declare(handler: HandlerT) -> HandlerT:
            self.schedule(name or handler.job_type.name, cron=expression, handler=handler, **options)
            return handler

        return declare

    def _check_schedules(self, other: Scheduling) -> None:
        twice = self._schedules.keys() & other._schedules.keys()
        if twice:
            raise InvalidOptionError("other", f"declares the schedule {min(twice)!r}, which is declared here already")

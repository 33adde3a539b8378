"""`job`: the mixin that makes an application's class the queue, and the checks of a job before it is written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from importlib import import_module
from typing import Any, ClassVar, Final, Generic, TypeAlias, cast
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy import ColumnElement
from sqlalchemy.dialects.postgresql import INTERVAL, JSONB, TIMESTAMP
from sqlalchemy.orm import Mapped, Mapper, QueryContext, declared_attr, foreign, mapped_column, relationship, remote
from typing_extensions import TypeVar

from sa_jobqueue import payloads, tracing
from sa_jobqueue.errors import InvalidJobError, InvalidOptionError, PipelineMissingError
from sa_jobqueue.errors.removed import refuse_removed
from sa_jobqueue.ids import uuid7
from sa_jobqueue.layout import Layout
from sa_jobqueue.models import checks
from sa_jobqueue.models.attempt import AttemptMixin
from sa_jobqueue.models.audit import AuditMixin
from sa_jobqueue.models.base import CURRENT_XID, READ_BACK, NotifyingXid, Xid8, enum_type, expressed, id_type
from sa_jobqueue.models.blocker import BlockerMixin
from sa_jobqueue.models.chain import ChainMixin, map_chain
from sa_jobqueue.models.creation import register, register_pipeline
from sa_jobqueue.models.dead_letter import DeadLetterMixin
from sa_jobqueue.models.declarations import Declarations
from sa_jobqueue.models.event import EventMixin
from sa_jobqueue.models.job_table import job_table_args
from sa_jobqueue.models.minute import MinuteMixin
from sa_jobqueue.models.options import DECLARED, JOB_OPTIONS, OF_ROW
from sa_jobqueue.models.quarantine import QuarantineMixin
from sa_jobqueue.models.queue import JobTypeMixin, QueueMixin
from sa_jobqueue.models.rate_state import RateStateMixin
from sa_jobqueue.models.schedule import ScheduleMixin
from sa_jobqueue.models.step import StepMixin
from sa_jobqueue.models.threshold import ThresholdMixin
from sa_jobqueue.models.waits import WaitFor, waits
from sa_jobqueue.models.worker import WorkerMixin
from sa_jobqueue.policies.fairness import check_fairness_key
from sa_jobqueue.types import JobStatus

IdT = TypeVar("IdT", default=UUID)

_NOT_GIVEN: Final = (None,) * len(DECLARED)
NEW: Final[dict[str, Any]] = {
    **dict.fromkeys(DECLARED),
    "chain_index": 0,
    "status": JobStatus.PENDING,
    "open_blockers": 0,
    "attempt": 0,
}
"""Columns of a job whose type no handler in this process declares; the database fills in None."""


def _optional(column_type: sa.types.TypeEngine[Any]) -> sa.types.TypeEngine[Any]:
    """Return the type of a column that the ORM's INSERT leaves out where its attribute is not set.

    Of other nullable columns it sends a null for each row, and each value is a parameter that is named, bound and parsed:
    a third of all that `session.add_all` costs.
    """
    return column_type.evaluates_none()


_FIND: Final = object()
"""The handler is the one that this process declares for the type, if there is one."""


_COMPANIONS: Final[dict[str, tuple[type, str]]] = {
    "Attempt": (AttemptMixin, "job_attempt"),
    "Step": (StepMixin, "job_step"),
    "Event": (EventMixin, "job_event"),
    "Minute": (MinuteMixin, "job_minute"),
    "Blocker": (BlockerMixin, "job_blocker"),
    "DeadLetter": (DeadLetterMixin, "dead_letter"),
    "Worker": (WorkerMixin, "worker"),
    "Queue": (QueueMixin, "queue"),
    "JobType": (JobTypeMixin, "job_type"),
    "Schedule": (ScheduleMixin, "schedule"),
    "RateState": (RateStateMixin, "rate_state"),
    "Quarantine": (QuarantineMixin, "quarantine"),
    "Audit": (AuditMixin, "job_audit"),
    "Threshold": (ThresholdMixin, "threshold"),
}
"""The other classes of a queue by their names on `Job`: what each inherits, and its table."""


def _companions(layout: Layout) -> dict[str, tuple[type, str]]:
    return _COMPANIONS | _companions_of_pipeline() if layout.pipeline else _COMPANIONS


def _companions_of_pipeline() -> dict[str, tuple[type, str]]:
    # By name: the pipeline is above everything else, and nothing imports it.
    companions: dict[str, tuple[type, str]] = import_module("sa_jobqueue.pipeline.models").COMPANIONS
    return companions


def add_pipeline(model: type[JobMixin[Any]]) -> None:
    """Map the tables of the pipeline on a class that was declared without them, as by its keyword."""
    if not model.__jobqueue__.pipeline:
        layout = replace(model.__jobqueue__, pipeline=True)
        for mapped_class in (model, model.Chain, *(getattr(model, noun) for noun in _COMPANIONS)):
            mapped_class.__jobqueue__ = layout  # a queue has one layout, by which its classes are recognised
        model._map_companions(_companions_of_pipeline())
        register_pipeline(cast("sa.Table", model.__table__), model.__jobqueue__)


def check_onupdate(model: type[JobMixin[Any]]) -> None:
    """Call the application's `onupdate` functions once. Raises: InvalidOptionError naming the column of one that raises.

    Workers execute them in every statement that changes jobs, so such a function would stop all of these.
    """
    for mapped_class in (model, *(getattr(model, noun) for noun in _companions(model.__jobqueue__))):
        for column in mapped_class.__table__.c:
            argument = getattr(column.onupdate, "arg", None)
            if isinstance(argument, sa.BindParameter) and argument.callable is not None:
                try:
                    argument.callable()
                except Exception as error:
                    raise InvalidOptionError(
                        f"{mapped_class.__name__}.{column.key}", f"has an onupdate that raises {error!r}"
                    ) from error


class _OfPipeline:
    """A class of the pipeline on a queue that has none: an error that names the keyword."""

    def __get__(self, job: object, model: type[JobMixin[Any]]) -> type[Any]:
        raise PipelineMissingError(model.__name__)


class JobMixin(Generic[IdT]):
    """Turns a mapped class into job tables: `class Job(JobMixin, Base)`.

    Class keywords: `queue_schema` and `queue_prefix` place the tables (see `Layout`); `queue_id_factory` makes ids, by
    default UUIDv7; `queue_pipeline=True` adds the tables of Spark's writes and of the archive. `JobMixin[str]` has text
    ids. Columns added in the class body are the application's own. `Job.Attempt`, `Job.Chain`, `Job.DeadLetter` and others
    are mapped on the same base.
    """

    __jobqueue__: ClassVar[Layout]
    __table__: ClassVar[sa.FromClause]
    __mapper__: ClassVar[Mapper[Any]]
    __id_factory__: ClassVar[staticmethod[[], Any]]
    __own_table_args__: ClassVar[tuple[tuple[Any, ...], dict[str, Any]]]
    __handlers__: ClassVar[Declarations]

    _delay: timedelta | None
    _at: datetime | None
    # The chains it waits for, as passed to the constructor; rows of `job_blocker` once it is written.
    _blockers: tuple[WaitFor[Any], ...] = ()
    _is_enqueued: bool = False
    _known_type: str | None = None
    # Its input as the constructor checked it, with the text that is written.
    _document: payloads.Document | None = None
    # The handler of its type, which knows the types of its blockers and of its output; None without one in this process.
    _handler: Any = None

    ArchiveChain = ArchiveRun = Reject = Stage = Write = _OfPipeline()
    Attempt: ClassVar[type[AttemptMixin[Any]]]
    Audit: ClassVar[type[AuditMixin]]
    Blocker: ClassVar[type[BlockerMixin[Any]]]
    Chain: ClassVar[type[ChainMixin[Any]]]
    DeadLetter: ClassVar[type[DeadLetterMixin[Any]]]
    Event: ClassVar[type[EventMixin]]
    JobType: ClassVar[type[JobTypeMixin]]
    Minute: ClassVar[type[MinuteMixin]]
    Quarantine: ClassVar[type[QuarantineMixin]]
    Queue: ClassVar[type[QueueMixin]]
    RateState: ClassVar[type[RateStateMixin]]
    Schedule: ClassVar[type[ScheduleMixin[Any]]]
    Step: ClassVar[type[StepMixin[Any]]]
    Threshold: ClassVar[type[ThresholdMixin]]
    Worker: ClassVar[type[WorkerMixin]]

    def __init_subclass__(
        cls,
        *,
        queue_schema: str | None = None,
        queue_prefix: str = "",
        queue_id_factory: Callable[[], Any] | None = None,
        queue_pipeline: bool = False,
        **kwargs: Any,
    ) -> None:
        mapped = hasattr(cls, "registry") or hasattr(cls, "__pydantic_complete__")
        if not mapped or any("__jobqueue__" in base.__dict__ for base in cls.__mro__[1:]):
            # Another mixin, not a mapped class yet; or a subclass of a queue, which is that same queue.
            if mapped:
                checks.check_subclass(cls)
            super().__init_subclass__(**kwargs)
            return
        checks.check_bases(cls, JobMixin)
        if queue_schema is None:  # the schema of tables that do not set one
            queue_schema = cls.metadata.schema  # type: ignore[attr-defined]
        text_ids = checks.id_argument(cls, JobMixin) is str
        layout = Layout(queue_schema, queue_prefix, "text" if text_ids else "uuid", queue_pipeline)
        checks.check_class(cls, kwargs)
        cls.__own_table_args__ = checks.own_table_args(cls, JobMixin)
        setattr(cls, "__table_args__", JobMixin.__dict__["__table_args__"])  # noqa: B010 - a method cannot be assigned to
        cls.__jobqueue__ = layout
        cls.__handlers__ = Declarations()
        cls.__id_factory__ = staticmethod(queue_id_factory or (_text_uuid7 if text_ids else uuid7))
        cls.__tablename__ = layout.name("job")  # type: ignore[attr-defined]
        # Not after the next line: bases with a metaclass, such as that of `declarative_base()`, map the class later.
        sa.event.listen(cls, "after_mapper_constructed", cls.__add_companions)
        super().__init_subclass__(**kwargs)

    @classmethod
    def __add_companions(cls, mapper: Mapper[Any], _: type[Any]) -> None:
        """Map the other classes of the queue, now that the class itself is mapped."""
        layout = cls.__jobqueue__
        cls.__table__.c.changed_xid.type = NotifyingXid(layout.quoted_schema, layout.name("job_notify_due"))
        expressed(cast("sa.Table", cls.__table__), "onupdate")
        if mapper.eager_defaults == "auto":  # not the application's own
            mapper.eager_defaults = READ_BACK  # type: ignore[assignment]
        cls._map_companions(_companions(layout))
        cls.Chain = map_chain(cls, mapper.registry)
        register(cast("sa.Table", cls.__table__), layout)

    @classmethod
    def _map_companions(cls, companions: Mapping[str, tuple[type, str]]) -> None:
        layout, base = cls.__jobqueue__, checks.declarative_base_of(cls)
        for noun, (mixin, table) in companions.items():
            body = {"__tablename__": layout.name(table), "__noun__": table, "__jobqueue__": layout, "__job__": cls}
            body |= {
                "__module__": cls.__module__,
                "__doc__": mixin.__doc__,
                "metadata": cast("sa.Table", cls.__table__).metadata,
            }
            names = {name for kind in mixin.__mro__ for name in vars(kind)}
            if "id" not in names:
                body["id"] = ()  # instead of the primary key that many bases have; None would not override an annotation
            companion: Any = type(f"{cls.__name__}{noun}", (mixin, base), body)
            setattr(cls, noun, companion)
            for column in companion.__table__.c:
                # Columns of the base, which the queue's statements do not write.
                if column.key not in names and column.default is column.server_default is None:
                    column.nullable = True
            expressed(companion.__table__, "default", "onupdate")

    def __init__(
        self,
        type_name: str,
        input: Any = None,
        *,
        # job options: all, id: IdT | None = None
        queue: str | None = None,
        fairness_key: str | int | None = None,
        priority: int | None = None,
        delay: timedelta | None = None,
        at: datetime | None = None,
        max_attempts: int | None = None,
        timeout: timedelta | None = None,
        id: IdT | None = None,
        deduplication_key: str | None = None,
        blockers: Iterable[Any] = (),
        rate_cost: int | None = None,
        input_version: int | None = None,
        expires_at: datetime | ColumnElement[datetime] | None = None,
        ordering_key: str | None = None,
        deadline: datetime | ColumnElement[datetime] | None = None,
        # end of job options
        **columns: Any,
    ) -> None:
        """Describe a job; a session writes it at the flush, and its commit enqueues it.

        If a registry in this process has a handler for the type (of several, the last), options that are not given are the
        handler's, and `input` is checked as its payload. Otherwise the database fills in the values that workers recorded
        for the type, else queue "default", priority 0, 20 attempts, no timeout, version 1.

        `type_name`: the handler's name; it need not have a handler in this process.
        `input`: a payload of the handler's type; without a handler, JSON of at most 1 MiB. It is read now: to change it
        later, set the attribute.
        `input_version`: at least 1; one that is not the handler's is checked when the job runs.
        `queue`: 1 to 100 letters, digits and `_.:/-`.
        `priority`: -9 to 9, larger first.
        `delay`: from the insert, by the database's clock; 0 to 36,500 days.
        `at`: an aware instant before the year 9000, instead of `delay`; a past one means now.
        `max_attempts`: at least 1.
        `timeout`: of one attempt, up to 36,500 days; None: none.
        `id`: yours, or made by the factory.
        `deduplication_key`: at most one open chain of a type has it; a second is an IntegrityError at the flush, unless
        you use `enqueue`. 1 to 500 characters, as `id` and `ordering_key`.
        `blockers`: chains that it waits for: jobs, chains, ids or `WaitFor`; new jobs are added to the session.
        `fairness_key`: at most 100 characters, or a whole number; jobs of different keys share the queue fairly.
        `rate_cost`: how much each attempt counts against rates, 1 to 1,000,000; 1 by default.
        `expires_at`: an aware instant, or an expression of the database's clock; if it has not started by then, it is
        cancelled.
        `ordering_key`: jobs of one key run one at a time, in the order of `created_at`.
        `deadline`: as `expires_at`, and an attempt that runs then is ended; the next job of the chain and the jobs whose
        results it waits for have it too, unless theirs is earlier.
        `columns`: the application's own; `trace_context`, by default OpenTelemetry's current span.
        Raises: InvalidJobError naming the field; InvalidPayloadError and InvalidJobError as `handler.job`.
        """
        handler = columns.pop("_handler", _FIND)
        if handler is _FIND:
            handler = self.__handlers__.get(type_name) if isinstance(type_name, str) else None
        if handler is None:
            checks.check_name("type_name", type_name)
            fields = dict(NEW)
            document = payloads.stored_untyped("input", input)
        else:  # what is the handler's was checked when that was declared
            fields = dict(handler.job_type.new)
            document, fairness_key = handler.encode(input, input_version, fairness_key)
        # job options: values
        declared_values = (queue, priority, max_attempts, timeout, rate_cost, input_version)
        row_values = (deduplication_key, expires_at, ordering_key, deadline)
        # end of job options
        if declared_values != _NOT_GIVEN:
            for name, value in zip(DECLARED, declared_values, strict=True):
                if value is not None:
                    JOB_OPTIONS[name].check(name, value)
                    fields[name] = value
        for name, column in zip(OF_ROW, row_values, strict=True):
            if column is not None:
                JOB_OPTIONS[name].check(name, column)
                (fields if name in fields else columns)[name] = column
        job_id = self.__id_factory__() if id is None else id
        if type(job_id) is not UUID or self.__jobqueue__.id_type == "text":
            checks.check_id(self, "id", job_id)
        if blockers:
            self._blockers = waits(blockers, type(job_id))
        if handler is not None and handler.job_type.blockers is not None:
            handler.check_blockers(self._blockers)
        fields["id"] = fields["chain_id"] = job_id
        fields["type_name"] = fields["chain_type_name"] = type_name
        fields["input"] = document.value
        fields["fairness_key"] = "" if fairness_key is None else check_fairness_key(fairness_key)
        if self._blockers:
            # What waits is never due, also where a writer (`merge`, `bulk_save_objects`) leaves out the blockers, which are
            # no column: without the number of open ones, which the flush counts, the database refuses a blocked job.
            fields["status"] = JobStatus.BLOCKED
        if columns:
            refuse_removed((name for name in columns if not hasattr(type(self), name)), refuse=InvalidJobError)
        super().__init__(**tracing.of_new_chain(columns) | columns)
        # After the application's columns, which cannot replace these.
        validators = self.__mapper__.validators
        if validators and not fields.keys().isdisjoint(validators):  # the application's own
            for name, value in fields.items():
                setattr(self, name, value)
        else:
            # What a flush reads, of an object that was never loaded. Attributes one by one, with their history and
            # their events, are more than half of all that making a job costs.
            self.__dict__.update(fields)
        self._known_type, self._document = type_name, document
        if handler is not None:
            self._handler = handler
        # Kept beside the expression for the set-based enqueue, which computes it for all rows at once.
        self._delay, self._at = delay, at
        if (delay is not None or at is not None) and (due := checks.due_at(delay=delay, at=at)) is not None:
            self.scheduled_at = due  # an expression of the database until the flush

    # `sort_order`: as the first migration has them. Without it, what is declared by a function would come last.

    @declared_attr
    def id(cls) -> Mapped[IdT]:
        """Primary key, generated by the client, so it is known before the flush."""
        if not hasattr(cls, "__jobqueue__"):  # this is the first attribute that a mapper reads
            raise InvalidOptionError(
                cls.__name__,  # type: ignore[attr-defined]
                checks.MIXIN_FIRST,
            )
        return mapped_column(id_type(cls.__jobqueue__), nullable=False, sort_order=-50)

    queue: Mapped[str] = mapped_column(sa.Text, nullable=False, server_default=sa.FetchedValue(), sort_order=-49)
    """Name of the queue. Workers choose the queues that they serve. Inserted without it: the value that workers recorded for
    the type, else "default"."""
    fairness_key: Mapped[str] = mapped_column(sa.Text, nullable=False, server_default=sa.text("''"), sort_order=-49)
    """Jobs of different keys, such as a customer's id, share the queue fairly; empty for no key."""
    type_name: Mapped[str] = mapped_column(sa.Text, nullable=False, sort_order=-48)
    """Type of the job, which selects its handler."""
    priority: Mapped[int] = mapped_column(sa.SmallInteger, nullable=False, server_default=sa.FetchedValue(), sort_order=-47)
    """From -9 to 9; larger numbers are claimed first. Queue, fairness key and priority identify the lane. Inserted without
    it: as recorded, else 0."""

    @declared_attr
    def chain_id(cls) -> Mapped[IdT]:
        """Id of the chain's root job; the root's own id."""
        return mapped_column(id_type(cls.__jobqueue__), nullable=False, sort_order=-46)

    chain_type_name: Mapped[str] = mapped_column(sa.Text, nullable=False, sort_order=-45)
    """Type of the root job."""
    chain_index: Mapped[int] = mapped_column(sa.Integer, nullable=False, server_default=sa.text("0"), sort_order=-44)
    """Position in the chain; 0 is the root."""

    @declared_attr
    def root_id(cls) -> Mapped[IdT | None]:
        """Id of the root job for a continuation, null for a root. Roots have no foreign key to check."""
        return mapped_column(id_type(cls.__jobqueue__), sa.Computed("NULLIF(chain_id, id)", persisted=True), sort_order=-43)

    # None is the JSON null here, so that "no output yet" and "returned None" differ.
    input: Mapped[Any] = mapped_column(JSONB, nullable=True, sort_order=-42)
    """Input of the handler, as JSON."""
    input_version: Mapped[int] = mapped_column(sa.Integer, nullable=False, server_default=sa.FetchedValue(), sort_order=-41)
    """Version of the input's schema; upcasters convert older versions. Inserted without it: as recorded, else 1."""
    output: Mapped[Any] = mapped_column(JSONB, nullable=True, sort_order=-40)
    """Output of the handler, as JSON; SQL NULL until it has returned."""

    @declared_attr
    def status(cls) -> Mapped[JobStatus]:
        """Current status."""
        return mapped_column(
            enum_type(cls.__jobqueue__, "job_status"), nullable=False, server_default=sa.text("'pending'"), sort_order=-39
        )

    open_blockers: Mapped[int] = mapped_column(sa.Integer, nullable=False, server_default=sa.text("0"))
    """Number of chains that the job still waits for."""
    has_waiters: Mapped[bool] = mapped_column(sa.Boolean, nullable=False, server_default=sa.text("false"))
    """On a root: whether a job or a caller is waiting for the end of the chain and has not been notified yet."""
    created_at: Mapped[datetime] = mapped_column(TIMESTAMP(timezone=True), nullable=False, server_default=sa.func.now())
    """When the enqueueing transaction began."""
    scheduled_at: Mapped[datetime] = mapped_column(TIMESTAMP(timezone=True), nullable=False, server_default=sa.func.now())
    """When it is due or was due; each retry sets a new time."""
    started_at: Mapped[datetime | None] = mapped_column(_optional(TIMESTAMP(timezone=True)))
    """When the last attempt was claimed."""
    completed_at: Mapped[datetime | None] = mapped_column(_optional(TIMESTAMP(timezone=True)))
    """When it ended (completed, dead or cancelled)."""
    completed_by: Mapped[str | None] = mapped_column(_optional(sa.Text()))
    """Worker that completed it."""
    attempt: Mapped[int] = mapped_column(sa.Integer, nullable=False, server_default=sa.text("0"))
    """Number of times it was claimed. It never decreases; with `leased_by` it fences every write of an attempt."""
    max_attempts: Mapped[int] = mapped_column(sa.Integer, nullable=False, server_default=sa.FetchedValue())
    """Maximum number of attempts; raised by one for each that does not count. Inserted without it: as
    recorded, else 20."""
    timeout: Mapped[timedelta | None] = mapped_column(INTERVAL, server_default=sa.FetchedValue())
    """Timeout of one attempt; null for none. Inserted without it, and without queue, priority or attempts: as recorded."""
    last_error: Mapped[Any | None] = mapped_column(_optional(JSONB(none_as_null=True)))
    """Error of the last unsuccessful attempt."""
    leased_by: Mapped[str | None] = mapped_column(_optional(sa.Text()))
    """Worker that runs it; set only while it is running."""
    leased_until: Mapped[datetime | None] = mapped_column(_optional(TIMESTAMP(timezone=True)))
    """When the job is rescued even if its worker is alive."""
    deduplication_key: Mapped[str | None] = mapped_column(_optional(sa.Text()))
    """Deduplication key, unique among the open chains of a type."""
    chain_completed_at: Mapped[datetime | None] = mapped_column(_optional(TIMESTAMP(timezone=True)))
    """On the root: when the whole chain ended. Null on continuations."""

    @declared_attr
    def chain_status(cls) -> Mapped[JobStatus | None]:
        """On the root of a chain that ended with a continuation: status of the chain. If null, the root's own status is."""
        return mapped_column(_optional(enum_type(cls.__jobqueue__, "job_status")))

    trace_context: Mapped[str | None] = mapped_column(_optional(sa.Text()))
    """W3C traceparent of the span that enqueued it."""
    chain_trace_context: Mapped[str | None] = mapped_column(_optional(sa.Text()))
    """The same for the root job."""
    changed_xid: Mapped[int] = mapped_column(Xid8(), nullable=False, server_default=CURRENT_XID)
    """Id of the last transaction that changed its status, queue, fairness key, priority or due time; a trigger sets it if
    the statement did not."""

    expires_at: Mapped[datetime | None] = mapped_column(_optional(TIMESTAMP(timezone=True)), sort_order=1)
    """If it has not started by this time, it is cancelled. The database lowers it to the deadline."""
    ordering_key: Mapped[str | None] = mapped_column(_optional(sa.Text()), sort_order=2)
    """Jobs with the same key run one at a time, in the order of `created_at`."""
    rate_cost: Mapped[int | None] = mapped_column(sa.Integer, server_default=sa.FetchedValue(), sort_order=3)
    """Cost of each attempt against the rate limits of its queue, fairness key and type; null means 1."""
    deadline: Mapped[datetime | None] = mapped_column(_optional(TIMESTAMP(timezone=True)), sort_order=4)
    """If it has not ended by this time, it is cancelled, even if it runs."""

    @declared_attr
    def chain(cls) -> Mapped[ChainMixin[IdT]]:
        """The chain that it belongs to, loaded on first access: `job.chain.status`, `job.chain.output`."""
        job: Any = cls
        return relationship(
            lambda: job.Chain, primaryjoin=lambda: foreign(job.chain_id) == remote(job.Chain.id), viewonly=True
        )

    @declared_attr
    def blocked_by(cls) -> Mapped[list[BlockerMixin[IdT]]]:
        """Its blockers, also resolved ones, in order; each has `chain` and `is_resolved`."""
        job: Any = cls
        return relationship(
            lambda: job.Blocker,
            primaryjoin=lambda: remote(foreign(job.Blocker.job_id)) == job.id,
            order_by=lambda: job.Blocker.index,
            viewonly=True,
        )

    @declared_attr.directive
    def __table_args__(cls) -> tuple[Any, ...]:
        if "__jobqueue__" in cls.__dict__:  # not a subclass, which has the same tables
            tables = (table for _, table in _companions(cls.__jobqueue__).values())
            # Now, because a base may choose the metadata after `__init_subclass__`, as Flask-SQLAlchemy does by bind key.
            checks.check_tables(cls, cls.__jobqueue__, ("job", *tables))
        *parts, options = job_table_args(cls.__jobqueue__)
        application_args, own_options = cls.__own_table_args__
        return (*parts, *application_args, own_options | options)

    def _inherit_deadline(self, deadline: datetime | None) -> None:
        """Give a new job the deadline of the job that makes it, unless its own is earlier."""
        if deadline is not None:
            limit: Any = self.deadline
            if isinstance(limit, ColumnElement):
                self.deadline = sa.func.least(limit, deadline)
            elif limit is None or limit > deadline:
                self.deadline = deadline

    def __getstate__(self) -> dict[str, Any]:
        # A pickled job is data: the function that is to run it stays here.
        return {name: value for name, value in self.__dict__.items() if name not in {"_handler", "_document"}}

    def __repr__(self) -> str:
        # Only what is loaded: a repr must not query, and the input may be private.
        state = self.__dict__
        type_name = state.get("type_name") or self._known_type
        status = state.get("status") or ("(expired)" if "id" in state else None)
        return f"<{type(self).__name__} {state.get('id')} {type_name} {status}>"


JobClass: TypeAlias = type[JobMixin[Any]]
"""A class that is mapped to the table of a queue, such as `Job`."""


@sa.event.listens_for(JobMixin, "load", propagate=True)
def _remember_type(job: JobMixin[Any], _: QueryContext) -> None:
    """Remember the type of a loaded job, which its repr shows after a commit has expired the columns."""
    job._known_type = job.__dict__.get("type_name")


@sa.event.listens_for(JobMixin, "expire", propagate=True)
def _keep_id(job: JobMixin[Any] | None, attributes: Iterable[str] | None) -> None:
    """Keep the id of a job that a commit expires: the client made it, so no row can hold another."""
    if job is None:  # garbage-collected: SQLAlchemy expires the state that is left
        return
    state = sa.inspect(job)
    if state.key is not None:
        state.dict["id"] = state.key[1][0]
        state.expired_attributes.discard("id")


def _text_uuid7() -> str:
    return str(uuid7())

"""Mapped objects as arguments: their keys are written at the flush of the jobs, and the objects loaded in workers.

The key of a pending object is known once its row is inserted. An edge in the unit of work has that done before the jobs'
INSERT, where the key is read again each time. Where relationships of the application lead from the object to the job, the
unit of work drops the edge: the input is completed after the flush, by one UPDATE.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final, NoReturn
from weakref import WeakKeyDictionary

import sqlalchemy as sa
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import UnboundExecutionError
from sqlalchemy.orm import Session, UOWTransaction, unitofwork

from sa_jobqueue.errors import Cancel, Discard, InvalidPayloadError, ObjectNotFoundError
from sa_jobqueue.models import JobMixin
from sa_jobqueue.operations.transactions import queue_connection
from sa_jobqueue.payloads import Document
from sa_jobqueue.payloads.references import Ref, Template, replaced, unflushed
from sa_jobqueue.statements import references

_SAVE: Final[Any] = getattr(unitofwork, "_SaveUpdateAll", None) or getattr(unitofwork, "SaveUpdateAll", None)
"""The unit of work's action that writes the rows of a class: private, and called so since SQLAlchemy 2.1 and before."""
_incomplete: WeakKeyDictionary[Session, list[tuple[JobMixin[Any], Template]]] = WeakKeyDictionary()
"""Jobs of a flush that is under way whose arguments were pending at their INSERT."""


def before_flush(session: Session, flush: UOWTransaction, new: Iterable[JobMixin[Any]]) -> None:
    """Have pending objects inserted before the jobs whose arguments they are."""
    _incomplete.pop(session, None)
    for job in new:
        for ref in () if (template := _template(job)) is None else template.refs:
            state: Any = sa.inspect(ref._target)
            mappers = state.mapper.base_mapper, sa.inspect(type(job)).base_mapper
            if _SAVE is not None and state.pending and state.session is session and mappers[0] is not mappers[1]:
                flush.dependencies.add((_SAVE(flush, mappers[0]), _SAVE(flush, mappers[1])))


def before_insert(session: Session | None, job: JobMixin[Any]) -> None:
    """Write the keys of a job's arguments into its input, as they are now."""
    if session is None or (template := _template(job)) is None:
        return
    for ref in template.refs:
        _check(ref, session)
    document = _fill(job, template)
    if any(sa.inspect(ref._target).pending for ref in template.refs):
        _incomplete.setdefault(session, []).append((job, template))
        if not document.text:
            job.__dict__["input"] = None  # until `after_flush`


def after_flush(session: Session) -> None:
    """Complete the inputs of jobs that were inserted before their arguments, or whose arguments changed their keys."""
    changed = []
    for job, template in _incomplete.pop(session, ()):
        earlier_input = job.__dict__["input"]
        document = _fill(job, template)
        _require_keys(template)
        if document.value != earlier_input:
            changed.append((type(job), job.__dict__["id"], document.text))
    for kind in {row[0] for row in changed}:
        rows = [row for row in changed if row[0] is kind]
        parameters = {"ids": [row[1] for row in rows], "inputs": [row[2] for row in rows]}
        queue_connection(session, kind).execute(references.set_inputs(kind), parameters)


def complete(session: Session | None, jobs: Iterable[JobMixin[Any]]) -> None:
    """Write the keys of arguments into the inputs of jobs that no flush writes. Pending objects of the session are flushed.

    Raises: InvalidPayloadError for an argument that has no row.
    """
    for job in jobs:
        if (template := _template(job)) is None:
            continue
        states = [sa.inspect(ref._target) for ref in template.refs]
        if session is not None and any(state.pending and state.session is session for state in states):
            session.flush()
        for ref, state in zip(template.refs, states, strict=True):
            _check(ref, session)
            if state.pending and (error := unflushed("input", template.value, ref)) is not None:
                raise error
        _fill(job, template)
        _require_keys(template)


@sa.event.listens_for(sa.Engine, "handle_error")
def _explain(context: ExceptionContext) -> InvalidPayloadError | None:
    """Name the argument that a statement cannot write: no event completes inputs in `merge`, bulk methods and Core."""
    if not isinstance(context.original_exception, TypeError):
        return None
    # Those of the statement: the driver's are wrapped.
    rows: Iterable[Mapping[str, Any]] = getattr(context.execution_context, "compiled_parameters", None) or ()
    errors = (unflushed(name, parameter) for row in rows for name, parameter in row.items())
    return next((error for error in errors if error is not None), None)


def _template(job: JobMixin[Any]) -> Template | None:
    """Return the template of a job's input; None if it refers to no object, or was set since the job was made."""
    document: Document | None = getattr(job, "_document", None)  # other objects are refused later
    if document is None or document.template is None or job.__dict__.get("input") != document.value:
        return None
    template: Template = document.template
    return template


def _fill(job: JobMixin[Any], template: Template) -> Document:
    document = job._document = template.filled(_key_of)
    job.__dict__["input"] = document.value
    return document


def _key_of(ref: Ref[Any]) -> Sequence[Any] | None:
    state: Any = sa.inspect(ref._target)
    mapper = state.mapper
    key = [state.dict.get(mapper.get_property_by_column(column).key) for column in mapper.primary_key]
    if any(part is None or isinstance(part, sa.ClauseElement) for part in key):
        return None if state.key is None else tuple(state.key[1])  # expired
    return key  # also one that this flush changes


def _require_keys(template: Template) -> None:
    for ref in template.refs:
        if _key_of(ref) is None:
            _refuse(ref, "was not written in this flush: add it to the session of the job")


def _check(ref: Ref[Any], session: Session | None) -> None:
    """Refuse an argument whose row cannot be there for the job. `session`: the one that writes the job; None without one."""
    state: Any = sa.inspect(ref._target)
    owner: Session | None = state.session
    if state.transient:
        _refuse(ref, "is in no session: add it to the session of the job")
    if state.deleted or state.was_deleted or (owner is not None and ref._target in owner.deleted):
        _refuse(ref, "is deleted")
    if owner is None or session is None or owner is session:
        return
    if state.pending:
        _refuse(ref, "is pending in another session: flush that first, or add it to the session of the job")
    places = [_place(each, state.mapper) for each in (owner, session)]
    if None not in places and places[0] != places[1]:
        _refuse(ref, "is attached to a session of another database")


def _place(session: Session, mapper: Any) -> Any:
    """Return the database that a session has a class in; None if it has none."""
    try:
        url = session.get_bind(mapper).engine.url
    except UnboundExecutionError:
        return None
    return url.host, url.port, url.database, url.query.get("host"), url.query.get("port")


def _refuse(ref: Ref[Any], reason: str) -> NoReturn:
    raise InvalidPayloadError("input", f"the argument {ref!r} {reason}")


def load(session: Session, refs: Sequence[Ref[Any]]) -> list[Any]:
    """Return the objects that are referred to; for one that is not found, what its `LoadOptions` set: None or an exception.

    One statement loads those of a class whose options are equal.
    """
    groups: dict[tuple[str, int], list[Ref[Any]]] = {}
    for ref in refs:
        groups.setdefault((ref._mapped.__name__, id(ref._options)), []).append(ref)
    objects: dict[tuple[type[Any], Any], Any] = {}
    for _, group in sorted(groups.items(), key=itemgetter(0)):  # locks are taken in one order
        keys: dict[Any, None] = {ref.identity: None for ref in group}
        if None in keys:
            _refuse(group[0], "has no primary key yet: flush its session first")
        mapped = group[0]._mapped
        for loaded in session.scalars(references.objects(mapped, list(keys), group[0]._options)).unique():
            objects[mapped, sa.inspect(loaded).identity] = loaded
    places = [(ref._mapped, ref.identity) for ref in refs]  # an object may be falsy
    return [objects[place] if place in objects else _missing(session, ref) for place, ref in zip(places, refs, strict=True)]


def _missing(session: Session, ref: Ref[Any]) -> Exception | None:
    missing = ref._options.missing
    if missing == "none":
        return None
    place = session.execute(references.session_place(), bind_arguments={"mapper": sa.inspect(ref._mapped)}).one()
    error = ObjectNotFoundError(ref._mapped.__name__, ref.identity or (), place[0], place[1])
    return error if missing == "fail" else Discard(str(error)) if missing == "discard" else Cancel(str(error))


def load_one(session: Session, ref: Ref[Any]) -> Any:
    """Load the object of `Ref.load`."""
    (loaded,) = load(session, [ref])
    if isinstance(loaded, Exception):
        raise loaded
    return loaded


def load_arguments(session: Session, mapped: Collection[str], payloads: Sequence[Any]) -> list[Any]:
    """Return payloads with objects in place of references; a payload of which one is missing is the exception for it.

    `mapped`: the fields that are objects, or lists of them; an empty name for the payload itself.
    """
    refs = [[*_refs_in(payload if "" in mapped else [payload.get(name) for name in mapped])] for payload in payloads]
    every_ref = [ref for of_payload in refs for ref in of_payload]
    objects = dict(zip(map(id, every_ref), load(session, every_ref), strict=True))
    loaded = []
    for payload, of_payload in zip(payloads, refs, strict=True):
        errors = [objects[id(ref)] for ref in of_payload if isinstance(objects[id(ref)], Exception)]
        loaded.append(errors[0] if errors else replaced(payload, lambda node: objects.get(id(node), node)))
    return loaded


def _refs_in(node: Any) -> Iterator[Ref[Any]]:
    if isinstance(node, Ref):
        yield node
    elif isinstance(node, list):
        for part in node:
            yield from _refs_in(part)

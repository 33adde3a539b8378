"""Side effects that run after a commit, and never after a rollback, including rollbacks to savepoints."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Final, ParamSpec, cast

from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, SessionTransaction, scoped_session

from sa_jobqueue.errors import InvalidOptionError

P = ParamSpec("P")

# In the session's own dict, not in a table of ours: a callback that holds its session would keep such an entry forever.
_CALLBACKS: Final = "sa_jobqueue.effects_by_transaction"
_COMMITTED: Final = "sa_jobqueue.committed"

_log = logging.getLogger("sa_jobqueue.hooks")


def after_commit(
    session: Session | AsyncSession | scoped_session[Any] | async_scoped_session[Any],
    callback: Callable[P, object],
    /,
    *args: P.args,
    **kwargs: P.kwargs,
) -> None:
    """Call `callback(*args, **kwargs)` after the session's outermost transaction has committed.

    Callbacks run in the order of their registration, before `commit()` returns. A rollback discards them, a rollback to a
    savepoint those registered within it, and closing the session all of them. If a callback raises, the error is logged and
    the next one runs. A crash right after the commit loses them: enqueue a job for what must not be lost.
    `args`, `kwargs`: passed to it. `callback`: a quick sync function; with an `AsyncSession` it runs on the event loop. It
    must not use the session. Pass values instead of ORM objects, which the commit expires. It begins a transaction if the
    session has none. If a session joined an external transaction of its connection, the session's own commit counts.
    Raises: InvalidOptionError for a coroutine function, an object that is not callable, or one that is not a session.
    """
    target = _synchronous(session)
    _check(callback)
    transaction = target.get_nested_transaction() or target.get_transaction() or _begun(target)
    target.info.setdefault(_CALLBACKS, {}).setdefault(transaction, []).append(partial(callback, *args, **kwargs))


def _synchronous(session: Any) -> Session:
    if isinstance(session, scoped_session | async_scoped_session):
        session = session()
    if isinstance(session, AsyncSession):
        session = session.sync_session
    if not isinstance(session, Session):
        raise InvalidOptionError("session", f"must be a Session or an AsyncSession, got {session!r}")
    return session


def _check(callback: Any) -> None:
    if not callable(callback):
        raise InvalidOptionError("callback", f"must be a function, got {callback!r}")
    if inspect.iscoroutinefunction(callback) or inspect.iscoroutinefunction(type(callback).__call__):
        raise InvalidOptionError(
            "callback",
            f"{_name(callback)} is a coroutine function, which a commit cannot await; "
            "pass a plain function that starts a task, such as task_group.create_task, or enqueue a job instead",
        )


def _begun(session: Session) -> SessionTransaction:
    if not session.autobegin:
        raise InvalidOptionError("session", "is not in a transaction and has autobegin disabled; begin one first")
    return session.begin()


def hand_on(session: Session) -> None:
    """Hand the callbacks of a released savepoint to the transaction around it."""
    savepoint = session.get_nested_transaction()
    if savepoint is None:
        session.info[_COMMITTED] = session.get_transaction()
        return
    callbacks = session.info.get(_CALLBACKS, {})
    if savepoint in callbacks:
        # Nothing could be registered around it while it was open, so the order stays.
        callbacks.setdefault(_around(savepoint), []).extend(callbacks.pop(savepoint))


def _around(savepoint: SessionTransaction) -> SessionTransaction:
    """Return the savepoint or transaction that a savepoint is in; a flush in between is neither."""
    around = cast("SessionTransaction", savepoint.parent)
    while around.parent is not None and not around.nested:
        around = around.parent
    return around


def run_or_forget(session: Session, transaction: SessionTransaction) -> None:
    """Run the callbacks of a transaction that was committed, and forget those of others."""
    # Not at the commit itself: only now is the connection back in its pool, and the session out of its transaction.
    if transaction.parent is not None:
        session.info.get(_CALLBACKS, {}).pop(transaction, None)
        return
    callbacks = session.info.pop(_CALLBACKS, {})
    if session.info.pop(_COMMITTED, None) is transaction:
        for effect in callbacks.get(transaction, ()):
            _run(effect)


def _run(effect: partial[object]) -> None:
    try:
        result = effect()
    except Exception:  # the user's code; the commit before it stands, and others come after it
        _log.exception("%s failed after the commit, which stands", _name(effect.func))
        return
    if inspect.iscoroutine(result):
        result.close()
        _log.error("%s returned a coroutine after the commit; it is not awaited and was not run", _name(effect.func))


def _name(callback: Any) -> str:
    return f"{getattr(callback, '__module__', '')}:{getattr(callback, '__qualname__', repr(callback))}"

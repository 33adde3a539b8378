"""Finding the chain that already has a deduplication key, and making sure that nobody makes a second one meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import ColumnElement, Select, Update, any_, func, literal, null, select, update
from sqlalchemy.dialects.postgresql import ARRAY, INTERVAL

from sa_jobqueue.models import JobMixin
from sa_jobqueue.models.base import id_parameter
from sa_jobqueue.statements._parts import table
from sa_jobqueue.types import JobId


def lock_key(model: type[JobMixin[Any]], type_name: str, key: str) -> Select[Any]:
    """Wait until no other transaction is enqueueing with this key, and keep others waiting until ours ends.

    Locks: one advisory lock, by a 64-bit hash of queue, type and key; two keys that share a hash wait for each other
    for nothing. Obliges: several keys in one transaction are locked in the order of `(type_name, key)`.
    """
    name = f"{model.__jobqueue__.channel('due')}\x1f{type_name}\x1f{key}"
    return select(func.pg_advisory_xact_lock(func.hashtextextended(name, 0)))


def find(
    model: type[JobMixin[Any]],
    type_name: str,
    key: str,
    *,
    open_only: bool,
    window: timedelta | None,
    exclude: Sequence[JobId],
) -> Select[Any]:
    """Return the newest root job whose chain has the key, as an ORM object.

    `open_only`: leave out chains that have ended. `window`: leave out those enqueued longer ago, by the database's
    clock. `exclude`: leave out these chains.
    Index: `uq_job_deduplication` for open ones, `ix_job_deduplication` otherwise.
    """
    chosen = select(model).where(*_has(model, type_name, key)).order_by(model.created_at.desc()).limit(1)
    if open_only:
        chosen = chosen.where(model.chain_completed_at.is_(None))
    if window is not None:
        chosen = chosen.where(model.created_at >= func.now() - literal(window, INTERVAL))
    if exclude:
        chosen = chosen.where(~(table(model).c.id == any_(_ids(model, exclude))))
    return chosen.execution_options(populate_existing=True)


def give_up_key(model: type[JobMixin[Any]], type_name: str, key: str, chains: Sequence[JobId]) -> Update:
    """Take the key from open chains that hand it over to a successor.

    Locks: their root jobs. Index: `uq_job_deduplication`.
    """
    job = table(model)
    return (
        update(job)
        .where(
            job.c.chain_type_name == type_name,
            job.c.deduplication_key == key,
            job.c.chain_index == 0,
            job.c.chain_completed_at.is_(None),
            job.c.id == any_(_ids(model, chains)),
        )
        .values(deduplication_key=null())
    )


def _has(model: type[JobMixin[Any]], type_name: str, key: str) -> list[ColumnElement[bool]]:
    return [model.chain_type_name == type_name, model.deduplication_key == key, model.chain_index == 0]


def _ids(model: type[JobMixin[Any]], ids: Sequence[JobId]) -> ColumnElement[Any]:
    return literal(list(ids), ARRAY(id_parameter(model.__jobqueue__)))

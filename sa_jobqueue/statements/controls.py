"""Runtime settings of queues, job types and a worker, as that worker reloads them."""

from __future__ import annotations

from typing import Any, Final

import sqlalchemy as sa

from sa_jobqueue.models.options import DECLARED
from sa_jobqueue.statements._parts import Tables, array, statement
from sa_jobqueue.statements.notifications import notification
from sa_jobqueue.statements.queues import SETTINGS

COLUMNS: Final = ("is_paused", *SETTINGS)
"""The settings of a queue or a job type, as `of_worker` returns them."""


@statement
def of_worker(t: Tables) -> sa.Select[Any]:
    """Return the settings of the queues and job types of one worker, of their fairness keys, and of the worker itself.

    Parameters: `queues`, `types`, `worker_id`.
    Shape: a row each that has one: `kind` (`queue`, `type` or `worker`), `name`, `fairness_key`, those of `COLUMNS`, null
    for a setting that is not set, and of a type those of `DECLARED`; of the worker `global_concurrency` is the concurrency
    asked for, null for its own; and `hash`, of all rows together, in each. Unordered.
    Locks: none. Index: the primary keys; all of `queue` and of `worker`, which are small.
    """
    queue, kind, worker = t.queue, t.job_type, t.worker
    no_key = sa.literal_column("''", sa.Text)

    def rows(kind_name: str, key: Any, fairness_key: Any, settings_of_row: dict[str, Any]) -> sa.Select[Any]:
        key_columns = [
            sa.literal_column(f"'{kind_name}'", sa.Text).label("kind"),
            key.label("name"),
            fairness_key.label("fairness_key"),
        ]
        nulls = {name: sa.cast(sa.null(), queue.c[name].type) for name in SETTINGS}
        nulls |= {name: sa.cast(sa.null(), kind.c[name].type) for name in DECLARED}
        columns = (*COLUMNS, *DECLARED)
        return sa.select(
            *key_columns,
            *((settings_of_row[name] if name in settings_of_row else nulls[name]).label(name) for name in columns),
        )

    def settings(row: Any) -> dict[str, Any]:
        columns = (*SETTINGS, *DECLARED)
        return {"is_paused": row.c.paused_at.is_not(None)} | {name: row.c[name] for name in columns if name in row.c}

    requested_settings = {"is_paused": sa.literal_column("false"), "global_concurrency": worker.c.concurrency_requested}
    setting = sa.union_all(
        rows("queue", queue.c.name, queue.c.fairness_key, settings(queue)).where(
            queue.c.name == sa.any_(array("queues", sa.Text()))
        ),
        rows("type", kind.c.type_name, no_key, settings(kind)).where(kind.c.type_name == sa.any_(array("types", sa.Text()))),
        rows("worker", worker.c.id, no_key, requested_settings).where(
            worker.c.id == sa.bindparam("worker_id", type_=sa.Text)
        ),
    ).subquery("setting")
    row_hash = sa.func.hashtextextended(sa.cast(sa.literal_column("setting"), sa.Text), sa.literal_column("0"))
    # A sum, so that the order does not matter.
    common_hash = sa.cast(sa.func.sum(sa.cast(row_hash, sa.Numeric)).over(), sa.Text)
    return sa.select(*setting.c, common_hash.label("hash"))


@statement
def notify_rules(t: Tables) -> sa.Select[Any]:
    """Notify running workers, if this transaction commits, that their settings have changed.

    Locks: a commit that carries a notification takes one lock a database for a moment.
    """
    return notification(t, "rules", sa.literal_column("''"))

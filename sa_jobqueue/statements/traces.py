"""Trace contexts that the span of an attempt links to."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import Select, bindparam, literal_column, select, union_all

from sa_jobqueue.models import JobMixin
from sa_jobqueue.models.base import id_parameter
from sa_jobqueue.statements._parts import once_a_model, table
from sa_jobqueue.tracing import LinkKind

MOST: Final = 100
"""Links of one attempt: a span keeps 128 by default."""


@once_a_model
def linked(model: type[JobMixin[Any]]) -> Select[Any]:
    """Read the spans that an attempt comes after: of the last attempt that failed, and of the chains its job waited for.

    Parameters: `job_id`. Shape: `kind, traceparent`, at most `MOST`, the failed attempt first, then the chains in the
    order of the job's blockers; what was not traced is left out.
    Changes: nothing. Locks: none. Index: the primary key of `job`, and `pk_job_blocker`.
    """
    job, edge = table(model), table(model.Blocker)
    root = job.alias("root")
    job_id = bindparam("job_id", type_=id_parameter(model.__jobqueue__))
    failed = job.c.last_error.op("->>")(literal_column("'trace_context'"))
    attempts = select(
        literal_column(f"'{LinkKind.FAILED_ATTEMPT}'").label("kind"),
        failed.label("traceparent"),
        literal_column("-1").label("place"),
    ).where(job.c.id == job_id)
    chains = (
        select(literal_column(f"'{LinkKind.BLOCKER}'"), root.c.trace_context, edge.c.index)
        .select_from(edge.join(root, root.c.id == edge.c.blocked_by_chain_id))
        .where(edge.c.job_id == job_id)
    )
    found = union_all(attempts, chains).subquery("found")
    return (
        select(found.c.kind, found.c.traceparent)
        .where(found.c.traceparent.is_not(None))
        .order_by(found.c.place)
        .limit(literal_column(str(MOST)))
    )

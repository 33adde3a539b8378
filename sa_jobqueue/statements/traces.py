"""Trace contexts that the span of an attempt links to."""

from __future__ import annotations

from typing import Any, Final

import sqlalchemy as sa

from sa_jobqueue.statements._parts import Tables, statement
from sa_jobqueue.tracing import LinkKind

MOST: Final = 100
"""Links of one attempt: a span keeps 128 by default."""


@statement
def linked(t: Tables) -> sa.Select[Any]:
    """Read the spans that an attempt comes after: of the last attempt that failed, and of the chains its job waited for.

    Parameters: `job_id`. Shape: `kind, traceparent`, at most `MOST`, the failed attempt first, then the chains in the
    order of the job's blockers; chains that were not traced are left out.
    Changes: nothing. Locks: none. Index: the primary key of `job`, and `pk_job_blocker`.
    """
    root = t.job.alias("root")
    job_id = t.id("job_id")
    failed = t.job.c.last_error.op("->>")(sa.literal_column("'trace_context'"))
    attempts = sa.select(
        sa.literal_column(f"'{LinkKind.FAILED_ATTEMPT}'").label("kind"),
        failed.label("traceparent"),
        sa.literal_column("-1").label("place"),
    ).where(t.job.c.id == job_id)
    chains = (
        sa.select(sa.literal_column(f"'{LinkKind.BLOCKER}'"), root.c.trace_context, t.blocker.c.index)
        .select_from(t.blocker.join(root, root.c.id == t.blocker.c.blocked_by_chain_id))
        .where(t.blocker.c.job_id == job_id)
    )
    spans = sa.union_all(attempts, chains).subquery("found")
    return (
        sa.select(spans.c.kind, spans.c.traceparent)
        .where(spans.c.traceparent.is_not(None))
        .order_by(spans.c.place)
        .limit(sa.literal_column(str(MOST)))
    )

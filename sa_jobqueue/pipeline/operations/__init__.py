"""The ledger of bulk writes, in the caller's transaction. With an `AsyncSession`: `await session.run_sync(list_writes)`."""

from sa_jobqueue.pipeline.operations.writes import (
    RejectedRow,
    Write,
    WriteCounts,
    count_write_chains,
    list_rejected_rows,
    list_writes,
    prune_writes,
)

__all__ = [
    "RejectedRow",
    "Write",
    "WriteCounts",
    "count_write_chains",
    "list_rejected_rows",
    "list_writes",
    "prune_writes",
]

"""The plugin that Alembic loads through its entry point: `op.migrate_job_queue`, and the comparison that writes it.

Alembic imports this module while it is being imported, so nothing of Alembic is imported at the module level here, nor
by anything this module imports there; a circular import would break every `alembic` command of the environment.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from alembic.autogenerate.api import AutogenContext
    from alembic.operations.ops import UpgradeOps
    from alembic.runtime.plugins import Plugin
    from alembic.util import PriorityDispatchResult


def setup(plugin: Plugin) -> None:
    """Register the operation, how it is written into a revision, and the comparison. Alembic calls this."""
    from alembic.util import DispatchPriority

    import sa_jobqueue.migrations.operation  # noqa: F401 - registers itself

    plugin.add_autogenerate_comparator(
        _compare,
        "autogenerate",
        "sa_jobqueue",  # of its own: a comparator that says STOP ends the run of its own subgroup alone
        priority=DispatchPriority.LAST,  # to see what the others found, and to take out what is the library's
    )


def _compare(context: AutogenContext, upgrade_ops: UpgradeOps) -> PriorityDispatchResult:
    from sa_jobqueue.migrations.autogenerate import compare_queues

    return compare_queues(context, upgrade_ops)


class _Plugin(ModuleType):
    """A module that is also the collection of itself: Alembic before 1.20.1 iterates over the loaded entry point."""

    def __iter__(self) -> Iterator[ModuleType]:
        yield self


sys.modules[__name__].__class__ = _Plugin

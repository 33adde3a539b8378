"""Tools to test jobs on a real PostgreSQL: run them, assert enqueued jobs, and move the clock.

The pytest plugin (`sa_jobqueue.testing.plugin`) provides databases; the other modules need neither it nor pytest.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sa_jobqueue.testing.assertions import assert_enqueued, assert_not_enqueued, enqueued
    from sa_jobqueue.testing.clock import advance
    from sa_jobqueue.testing.crashes import CallRecorder, Crash, CrashReport, CrashTest, CrashTestError, crash_test
    from sa_jobqueue.testing.draining import Drained, EndlessDrainError, drain
    from sa_jobqueue.testing.making import clear, make_job, perform

__all__ = [
    "CallRecorder",
    "Crash",
    "CrashReport",
    "CrashTest",
    "CrashTestError",
    "Drained",
    "EndlessDrainError",
    "advance",
    "assert_enqueued",
    "assert_not_enqueued",
    "clear",
    "crash_test",
    "drain",
    "enqueued",
    "make_job",
    "perform",
]


def __getattr__(name: str) -> Any:
    # On first use: pytest imports the plugin, and with it this package, before it measures coverage.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from sa_jobqueue.testing import assertions, clock, crashes, draining, making

    modules = (assertions, clock, crashes, draining, making)
    return next(getattr(module, name) for module in modules if hasattr(module, name))

"""Where a figure becomes a finding."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import timedelta

from sa_jobqueue.errors import InvalidOptionError


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """What counts as a warning, and what as critical; `docs/guides/monitoring.md` says why each is what it is.

    Raises: InvalidOptionError for a value that is not above zero, and for a warning that comes after its alarm.
    """

    claim_age_warning: timedelta = timedelta(minutes=1)
    claim_age_critical: timedelta = timedelta(minutes=10)
    saturation: float = 0.9
    """Part of the slots that is taken; counts only while more arrives than completes."""
    retry_rate_warning: float = 0.1
    retry_rate_critical: float = 0.5
    retry_minimum: int = 20
    """Attempts that must have ended before a rate means anything."""
    long_running: timedelta = timedelta(hours=1)
    dead_letters_hour_critical: int = 100
    """Dead letters of one hour; a single one is a warning."""
    chains_to_unblock: timedelta = timedelta(minutes=1)
    horizon_warning: timedelta = timedelta(minutes=5)
    horizon_critical: timedelta = timedelta(hours=1)
    horizon_age_warning: int = 1_000_000
    """In transactions: for holders whose time is not known, slots and standbys."""
    horizon_age_critical: int = 20_000_000
    dead_tuples_factor: float = 10.0
    """Dead rows, in multiples of those at which autovacuum should have begun."""
    bloat_bytes: int = 256 * 2**20
    bloat_share: float = 0.5
    """Part of a table or index that is waste; both must be exceeded."""
    frozen_age_warning: int = 500_000_000
    frozen_age_critical: int = 1_600_000_000
    connections: float = 0.9
    outgrown_per_second: float = 2_000.0
    """Completed jobs a second, over the window, at which a broker should be weighed."""
    outgrown_bytes: int = 200 * 2**30
    """Of all tables and indexes of the queue."""

    def __post_init__(self) -> None:
        for option in fields(self):
            value = getattr(self, option.name)
            zero = timedelta(0) if isinstance(value, timedelta) else 0
            if value <= zero:
                raise InvalidOptionError(option.name, f"must be above zero, got {value!r}")
            if option.name.endswith("_warning"):
                critical = option.name.removesuffix("warning") + "critical"
                if value > getattr(self, critical):
                    raise InvalidOptionError(option.name, f"must not be above {critical}")

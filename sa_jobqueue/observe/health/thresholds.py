"""The thresholds of the findings."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import timedelta

from sa_jobqueue.errors import InvalidOptionError


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """Thresholds of warnings and critical findings; `docs/guides/monitoring.md` explains each.

    Raises: InvalidOptionError if a value is not greater than 0, or a warning is above its critical threshold.
    """

    claim_age_warning: timedelta = timedelta(minutes=1)
    claim_age_critical: timedelta = timedelta(minutes=10)
    saturation: float = 0.9
    """Share of the slots in use; only a finding while more jobs arrive than complete."""
    retry_rate_warning: float = 0.1
    retry_rate_critical: float = 0.5
    retry_minimum: int = 20
    """Minimum number of ended attempts for a retry rate."""
    long_running: timedelta = timedelta(hours=1)
    awaiting_event: timedelta = timedelta(days=1)
    """How long a job waits for an event."""
    dead_letters_hour_critical: int = 100
    """Dead letters within one hour; a single one is a warning."""
    chains_to_unblock: timedelta = timedelta(minutes=1)
    bulk_unfinished: timedelta = timedelta(hours=2)
    """Time since a bulk write staged its first rows; after 24 h it can no longer commit."""
    horizon_warning: timedelta = timedelta(minutes=5)
    horizon_critical: timedelta = timedelta(hours=1)
    horizon_age_warning: int = 1_000_000
    """Threshold in transactions, for holders whose time is unknown: replication slots and standbys."""
    horizon_age_critical: int = 20_000_000
    dead_tuples_factor: float = 10.0
    """Dead rows, as a multiple of the number at which autovacuum starts."""
    dead_tuples_minimum: int = 10_000
    """Minimum number of dead rows: fewer cost nothing, however small the table is."""
    bloat_bytes: int = 256 * 2**20
    bloat_share: float = 0.5
    """Bloated share of a table or index; both thresholds must be exceeded."""
    frozen_age_warning: int = 500_000_000
    frozen_age_critical: int = 1_600_000_000
    connections: float = 0.9
    outgrown_per_second: float = 2_000.0
    """Completed jobs per second, over the window, above which a broker may be the better choice."""
    outgrown_bytes: int = 200 * 2**30
    """Total size of the queue's tables and indexes."""

    def __post_init__(self) -> None:
        for option in fields(self):
            value = getattr(self, option.name)
            zero = timedelta(0) if isinstance(value, timedelta) else 0
            if value <= zero:
                raise InvalidOptionError(option.name, f"must be greater than 0, got {value!r}")
            if option.name.endswith("_warning"):
                critical = option.name.removesuffix("warning") + "critical"
                if value > getattr(self, critical):
                    raise InvalidOptionError(option.name, f"must not be greater than {critical}")

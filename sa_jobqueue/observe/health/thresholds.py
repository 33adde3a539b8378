"""The thresholds of the findings: declared here, and stored for every program that measures the health of a queue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from math import ceil
from typing import Any, Final

from sqlalchemy.orm import Session

from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.models import Job, JobClass
from sa_jobqueue.models.checks import NAME_RULE, is_name
from sa_jobqueue.operations.audit import record
from sa_jobqueue.statements import thresholds


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """Thresholds of warnings and critical findings; `docs/guides/monitoring.md` explains each.

    `queues`: those of single queues, which differ in `claim_age_warning`, `claim_age_critical` and `long_running`.
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
    """Total size of the job tables and indexes."""

    queues: Mapping[str, Thresholds] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, kind in KINDS.items():
            value = getattr(self, name)
            if not isinstance(value, kind if kind is timedelta else int | kind) or isinstance(value, bool):
                raise InvalidOptionError(name, f"must be a {kind.__name__}, got {value!r}")
            if not value > kind(0):
                raise InvalidOptionError(name, f"must be greater than 0, got {value!r}")
        for name, critical in _CRITICAL.items():
            if getattr(self, name) > getattr(self, critical):
                raise InvalidOptionError(name, f"must not be greater than {critical}")

    def of(self, queue: str) -> Thresholds:
        """Return the thresholds of one queue."""
        return self.queues.get(queue, self)


KINDS: Final[Mapping[str, type[Any]]] = {
    threshold.name: type(threshold.default) for threshold in fields(Thresholds) if threshold.name != "queues"
}
"""The type of each threshold, by name."""
_CRITICAL: Final = {name: name.replace("_warning", "_critical") for name in KINDS if name.endswith("_warning")}
"""The critical threshold of each warning."""
OF_QUEUES: Final = ("claim_age_warning", "claim_age_critical", "long_running")
"""Those that a queue may have."""


def get_thresholds(session: Session, *, model: JobClass = Job) -> Thresholds:
    """Return the thresholds that are stored; the others have their defaults."""
    values_by_queue: dict[str, dict[str, Any]] = {}
    for name, queue, value in session.execute(thresholds.every(model)):
        if name in KINDS:  # a newer version may know more
            values_by_queue.setdefault(queue, {})[name] = _read(KINDS[name], value)
    every = _consistent(Thresholds(), values_by_queue.pop("", {}))
    return replace(every, queues={queue: _consistent(every, values) for queue, values in values_by_queue.items()})


def set_thresholds(
    session: Session, values: Mapping[str, Any], *, queue: str = "", by: str | None = None, model: JobClass = Job
) -> Thresholds:
    """Store thresholds for all programs that measure the health of the queue, and return the stored values.

    `values`: by name, as fields of `Thresholds`; None for the default. `queue`: for this queue only, which may have
    `claim_age_warning`, `claim_age_critical` and `long_running`; empty for all others. `by`: recorded in the audit.
    Changes: rows of `threshold`. Raises: InvalidOptionError before anything is written.
    """
    if queue and not is_name(queue):
        raise InvalidOptionError("queue", f"{NAME_RULE}, got {queue!r}")
    for name in values:
        if name not in (names := OF_QUEUES if queue else tuple(KINDS)):
            raise InvalidOptionError("name", f"must be among {', '.join(names)}, got {name!r}")
    stored = get_thresholds(session, model=model)
    default = stored if queue else Thresholds()
    replace(stored.of(queue), **{name: getattr(default, name) if value is None else value for name, value in values.items()})
    session.execute(thresholds.drop(model), {"names": list(values), "queue": queue})
    rows = [
        {"name": name, "queue": queue, "value": value.total_seconds() if isinstance(value, timedelta) else value}
        for name, value in values.items()
        if value is not None
    ]
    if rows:
        session.execute(thresholds.put(model), rows)
    record(session, "set_thresholds", by=by, ids=sorted(values), queue=queue, values=dict(values), model=model)
    return get_thresholds(session, model=model)


def overridden(stored: Thresholds, values: Mapping[str, Any]) -> Thresholds:
    """Return stored thresholds with others for all queues, those of single queues as well. Raises: InvalidOptionError."""
    queues = {queue: _consistent(queue_thresholds, dict(values)) for queue, queue_thresholds in stored.queues.items()}
    return replace(stored, **values, queues=queues)


def _read(kind: type[Any], value: float) -> Any:
    return timedelta(seconds=value) if kind is timedelta else ceil(value) if kind is int else value


def _consistent(thresholds: Thresholds, values: dict[str, Any]) -> Thresholds:
    """Return thresholds with others values. A critical one that is lower than the warning counts for both."""
    for name, critical in _CRITICAL.items():
        most = values.get(critical, getattr(thresholds, critical))
        values[name] = min(values.get(name, getattr(thresholds, name)), most)
    return replace(thresholds, **values)

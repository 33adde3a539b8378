"""Retention periods of ended chains. Pure: only ages; the statements apply them with the database's clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import Any, Final

from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.types import LONGEST, JobStatus

FOREVER: Final = LONGEST
"""An age that no chain reaches: keeps those that a more general rule would delete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """Ages at which chains are deleted, counted from their end, by how they ended.

    None means that the next more general rule applies: the type's, its queue's, then the registry's. Without any rule,
    chains are kept.
    Raises: InvalidOptionError for an age below zero or above `FOREVER`.
    """

    completed: timedelta | None = None
    """Of chains that completed."""
    cancelled: timedelta | None = None
    """Of chains that were cancelled."""
    dead: timedelta | None = None
    """Of chains that died. Their open dead letters are then dismissed."""
    dead_letters: timedelta | None = None
    """Of dead letters after they were redriven or dismissed. Those whose job is still dead are kept."""
    audit: timedelta | None = None
    """Of audit records, only in the retention of the `JobQueue`."""

    def __post_init__(self) -> None:
        for option in fields(self):
            age = getattr(self, option.name)
            if age is None:
                continue
            if not isinstance(age, timedelta):
                raise InvalidOptionError(f"retention.{option.name}", f"must be a timedelta, got {age!r}")
            if not timedelta(0) <= age <= FOREVER:
                raise InvalidOptionError(f"retention.{option.name}", f"must be from 0 to {FOREVER.days:,} days, got {age}")


NO_RETENTION: Final = Retention()
OUTCOMES: Final = (JobStatus.COMPLETED, JobStatus.CANCELLED, JobStatus.DEAD)
"""How a chain can end; each is a field of `Retention`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionRules:
    """Retention of the chains in one set of job tables: by default, by queue, and by the type of a chain's first job."""

    default: Retention = NO_RETENTION
    """Rule of the `JobQueue`, for fields that the others leave unset."""
    queues: Mapping[str, Retention] = field(default_factory=dict)
    """Rule of each queue with settings, by its name."""
    types: Mapping[str, Retention] = field(default_factory=dict)
    """Rule of each job type with its own, by the name of the type."""

    @property
    def shortest(self) -> dict[str, timedelta]:
        """The shortest age in `jobs`, `dead_letters` and `audit`, of those that have any: no younger row can be deleted."""
        every = (self.default, *self.queues.values(), *self.types.values())
        ages_by_table = {
            "jobs": [getattr(rule, outcome) for rule in every for outcome in OUTCOMES],
            "dead_letters": [rule.dead_letters for rule in every],
            "audit": [self.default.audit],
        }
        finite_ages = {
            table: [age for age in ages if age is not None and age < FOREVER] for table, ages in ages_by_table.items()
        }
        return {table: min(ages) for table, ages in finite_ages.items() if ages}

    def document(self) -> dict[str, Any]:
        """Return the ages as JSON, in microseconds: `statements.retention` looks them up by type, queue and field."""

        def ages(rule: Retention) -> dict[str, str]:
            age_by_field = ((name, getattr(rule, name)) for name in (*OUTCOMES, "dead_letters"))
            return {
                name: f"{age // timedelta(microseconds=1)} microseconds" for name, age in age_by_field if age is not None
            }

        types, queues = ({name: ages(rule) for name, rule in rules.items()} for rules in (self.types, self.queues))
        return {"types": types, "queues": queues, "default": ages(self.default)}

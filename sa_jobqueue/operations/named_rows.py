"""Rows that operators change by name, queues, job types and schedules: pausing, resuming and deleting them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from sqlalchemy import Executable
from sqlalchemy.orm import Session

from sa_jobqueue.errors import NotFoundError
from sa_jobqueue.models import JobClass
from sa_jobqueue.operations import pages
from sa_jobqueue.operations.audit import record
from sa_jobqueue.operations.pages import BulkResult
from sa_jobqueue.registry.settings import check_fairness_key, check_names
from sa_jobqueue.statements import controls, named_rows

CheckKnown: TypeAlias = Callable[[Session, Sequence[str], JobClass], None]
"""Raises NotFoundError for a name that nothing but the call knows."""

UNWRITTEN_SCHEDULE: Final = "a worker, or `sa-jobqueue schedules sync`, writes the schedules of the code"


@dataclass(frozen=True, slots=True)
class Change:
    """A change of the rows of some names.

    `noun`: the name of a row in those of operations. `check_known`: of rows that are inserted when they are first
    paused; None for schedules, which must exist.
    """

    session: Session
    entity: named_rows.NamedRow
    names: Sequence[str]
    model: JobClass
    noun: str
    by: str | None
    dry_run: bool
    check_known: CheckKnown | None = None
    fairness_key: str = ""

    def pause(self) -> BulkResult[str]:
        """Pause the rows; return the names of those that were not paused."""
        self._check()
        if self.check_known is not None:
            self.check_known(self.session, self._unique_names, self.model)
            if not self.dry_run:
                self.session.execute(named_rows.make(self.entity), self._parameters(self._unique_names))
        paused = self._rows()
        names = [name for name in self._unique_names if not paused.get(name, False)]
        return self._write("pause", names, named_rows.pause(self.entity))

    def resume(self) -> BulkResult[str]:
        """Let the rows that are paused go on; return their names."""
        self._check()
        names = [name for name, is_paused in self._rows().items() if is_paused]
        return self._write("resume", names, named_rows.resume(self.entity))

    def delete(self) -> BulkResult[str]:
        """Delete the rows; return the names of those that existed."""
        self._check()
        return self._write("delete", [*self._rows()], named_rows.drop(self.entity))

    @property
    def _unique_names(self) -> list[str]:
        return list(dict.fromkeys(self.names))

    def _parameters(self, names: Sequence[str]) -> dict[str, Any]:
        return {"names": list(names), "of_key": self.fairness_key, "by": self.by}

    def _check(self) -> None:
        pages.check_lists(names=self.names)
        if self.check_known is not None:
            check_names("names", self.names)
            check_fairness_key(self.fairness_key)

    def _rows(self) -> dict[str, bool]:
        """Return whether each existing row is paused, and lock it. Raises: NotFoundError naming all missing schedules."""
        key = named_rows.key_of(self.entity).name
        statement = named_rows.rows(self.entity, lock=not self.dry_run)
        rows = self.session.execute(statement, self._parameters(self._unique_names)).mappings()
        paused = {row[key]: row["paused_at"] is not None for row in rows}
        if self.check_known is None and (missing := set(self._unique_names) - paused.keys()):
            raise NotFoundError(self.noun, sorted(missing), reason=f"nothing was changed; {UNWRITTEN_SCHEDULE}")
        return paused

    def _write(self, verb: str, names: list[str], statement: Executable) -> BulkResult[str]:
        names, matched = sorted(names), len(self._unique_names)
        if not self.dry_run:
            if names:
                self.session.execute(statement, self._parameters(names))
                self.session.execute(controls.notify_rules(self.model))
            about: dict[str, Any] = {"names": self._unique_names, "fairness_key": self.fairness_key or None}
            record(self.session, f"{verb}_{self.noun}s", by=self.by, ids=names, matched=matched, model=self.model, **about)
        return BulkResult(names, matched)

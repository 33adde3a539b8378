"""Sessions that hold locks which others wait for: the values, and sentences about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from sqlalchemy.orm import Session

from sa_jobqueue.display.printable import shortened, span
from sa_jobqueue.models import JobClass
from sa_jobqueue.statements import sessions
from sa_jobqueue.statements.session_names import PREFIX

MIN_LOCKED: Final = timedelta(seconds=5)
"""How long a transaction is open before it is named as the cause of a wait: a claim of a worker takes milliseconds."""
_REPLAY: Final = "startup"
"""`backend_type` of the process that replays on a standby, with the locks of the primary's transactions."""
_OURS: Final = "sa_jobqueue "
"""How the application names of this library's sessions start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LockHolder:
    """A session, or a prepared transaction, that holds locks and waits for none, as the server's views showed it."""

    pid: int | None
    """None for a prepared transaction."""
    name: str
    """Its application_name, or the name of the prepared transaction; empty if it has none or several are prepared."""
    user: str
    kind: str | None
    """`backend_type`; None if it is not visible to this role, and for a prepared transaction."""
    state: str | None
    """None if it is not visible to this role, and for a prepared transaction."""
    query: str | None
    """Its current or last statement, shortened and without literals."""
    locked_for: timedelta | None
    """Time since its transaction began; None if it is not visible to this role."""
    table: str | None = None
    """A table of the queue on which it holds an ACCESS EXCLUSIVE lock."""
    waiters: Sequence[int] = ()
    """Pids of sessions of this library, or that want to lock tables of the queue, which wait for it or behind it."""
    waiter_names: Sequence[str] = ()
    """Their application names."""
    waited_for: timedelta = timedelta(0)
    """How long the first of them has waited."""
    through: str = ""
    """The session that waits for it, but for those of this library; if others wait for several, that of one; else empty."""
    is_queue: bool = False
    """Whether others wait for that session in turn."""

    @classmethod
    def of_row(cls, row: Mapping[Any, Any], **fields: Any) -> LockHolder:
        """Return the value of a row of `sessions.lock_waits` or `explaining.locked_by`."""
        columns: dict[str, Any] = {name: row[name] for name in ("kind", "state", "locked_for")}
        columns |= {"name": row["name"] or "", "user": row["user"] or "", "query": shortened(row["query"])}
        return cls(pid=row["pid"] or None, **columns, **fields)

    @property
    def is_ours(self) -> bool:
        """Whether it is a session of this library: of a worker, a handler, the dashboard."""
        return self.pid is not None and self.name.startswith(_OURS)

    @property
    def is_old(self) -> bool:
        """Whether it may be the cause of a wait. One whose age is not visible may be, unless it is of this library."""
        return not self.is_ours if self.locked_for is None else self.locked_for >= MIN_LOCKED

    @property
    def description(self) -> str:
        """Return who it is, in what state, since when, and its statement."""
        called = f" {self.name!r}" if self.name else ""
        user = f" of {self.user}" if self.user else ""
        duration = "" if self.locked_for is None else span(self.locked_for)
        if self.pid is None:
            since = f", prepared {duration} ago" if duration else ""
            return f"the prepared transaction{called}{user}{since}" if called else "a prepared transaction"
        if self.kind == _REPLAY:
            return f"the replay of the primary's transactions (pid {self.pid})"
        doing = (
            f", {self.state}, in a transaction for {duration}" if duration else " (since when is not visible to this role)"
        )
        return f"session {self.pid}{called}{user}{doing}" + (f" (its last statement: {self.query})" if self.query else "")

    @property
    def sentence(self) -> str:
        """Return who holds which lock, and who waits for it, as a sentence."""
        lock = f"an ACCESS EXCLUSIVE lock on {self.table}" if self.table else "a lock"
        return f"{self.description[0].upper()}{self.description[1:]} holds {lock}{self.wait}."

    @property
    def wait(self) -> str:
        """Return who waits for it and makes others wait; empty if there is no such session."""
        behind = ", and others behind it" if self.is_queue else ""
        return f", which {self.through} waits for{behind}" if self.through else ""

    @property
    def advice(self) -> str:
        """Return the remedy as a sentence."""
        remedy = self.remedy()
        if remedy.startswith("to end it: "):
            return f"If it should not hold the lock, {remedy}."
        return f"{remedy[0].upper()}{remedy[1:]}."

    def remedy(self) -> str:
        """Return what to do about it. SQL to end it only if it is not of this library, and old."""
        if self.pid is None:
            if not self.name:
                return "to end it: COMMIT PREPARED or ROLLBACK PREPARED one of pg_prepared_xacts"
            return "to end it: ROLLBACK PREPARED '{}', or COMMIT PREPARED".format(self.name.replace("'", "''"))
        if self.name.startswith(PREFIX):
            return f"it is the session of a handler: sa-jobqueue jobs cancel {self.name.removeprefix(PREFIX)}"
        if self.kind == _REPLAY:
            return "look at the primary, where a transaction such as an ALTER TABLE is open"
        if self.is_ours:
            return f"it is a session of sa-jobqueue: see the log of {self.name.removeprefix(_OURS)!r}"
        if self.locked_for is None:
            return "GRANT pg_monitor to the role that asks, to see its age and its statement"
        if not self.is_old:
            return f"look again, as it is younger than {span(MIN_LOCKED)}"
        if self.kind not in {None, "client backend"}:
            return f"it is of PostgreSQL itself ({self.kind}), and ends when its work is done"
        return f"to end it: SELECT pg_terminate_backend({self.pid})"


def list_lock_holders(session: Session, model: JobClass) -> list[LockHolder]:
    """Return the roots of the chains of sessions that wait for locks, the longest wait first. Locks: none."""
    return lock_holders(session.execute(sessions.lock_waits(model)).mappings().all())


def lock_holders(rows: Sequence[Mapping[Any, Any]]) -> list[LockHolder]:
    """Return the roots in the rows of `sessions.lock_waits`: sessions that wait for no lock. Pure."""
    row_by_pid = {row["pid"]: row for row in rows}
    waiters_by_root: dict[int, list[Mapping[Any, Any]]] = {row["pid"]: [] for row in rows if row["table"]}
    for row in rows:
        if row["blockers"] and (row["is_of_table"] or (row["name"] or "").startswith(_OURS)):
            for pid in _roots(row["pid"], row_by_pid):
                waiters_by_root.setdefault(pid, []).append(row)
    blocking = {pid for row in rows for pid in row["blockers"] or ()}
    holders = []
    for pid, waiters in waiters_by_root.items():
        root = row_by_pid[pid]
        if root["is_waiting"]:
            continue  # for one that was not asked for: the root is not known
        waits = [row for row in waiters if pid in row["blockers"]]
        queued = [row for row in rows if pid in (row["blockers"] or ()) and row["pid"] in blocking]
        through = queued or [row for row in waits if not (row["name"] or "").startswith(_OURS)]
        holders.append(
            LockHolder.of_row(
                root,
                table=root["table"],
                waiters=[row["pid"] for row in waiters],
                waiter_names=[row["name"] or "" for row in waiters],
                waited_for=max((row["waited_for"] for row in waiters), default=timedelta(0)),
                through=_called(through[0]) if through else "",
                is_queue=bool(queued),
            )
        )
    return sorted(holders, key=lambda holder: -holder.waited_for)


def _roots(pid: int, row_by_pid: Mapping[int, Mapping[Any, Any]]) -> set[int]:
    """Return the sessions at the ends of the chains that a session waits for; none in a deadlock."""
    visited, roots, pids = {pid}, set(), [pid]
    while pids:
        row = row_by_pid.get(pids.pop())
        if row is None:  # it has ended meanwhile, or it is the session that asks
            continue
        if row["blockers"] is None:
            roots.add(row["pid"])
        for blocker in row["blockers"] or ():
            if blocker not in visited:
                visited.add(blocker)
                pids.append(blocker)
    return roots


def _called(row: Mapping[Any, Any]) -> str:
    called = f" {row['name']!r}" if row["name"] else ""
    query = shortened(row["query"])
    return f"session {row['pid']}{called} of {row['user']}" + (f" ({query})" if query else "")

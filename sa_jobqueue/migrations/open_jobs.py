"""Refuse a migration while jobs are open that need the code, or the tables, from before it: behind `op.require_no_jobs`.

A job that a transaction has inserted and not committed is invisible. So the check first waits for the transactions that have
written to the job table and are older than it, as `CREATE INDEX CONCURRENTLY` does, by reading `pg_locks`. A job that is
committed while the migration runs is found by a second check, before the migration commits. Later ones are not.

The SQL has its values as literals: `alembic upgrade --sql` writes the same statements into a script.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final

from sqlalchemy import ClauseElement, Connection, Row, event, text
from sqlalchemy.dialects import postgresql

from sa_jobqueue.display.durations import shown_duration
from sa_jobqueue.errors import InvalidOptionError, OpenJobsError, require_postgresql
from sa_jobqueue.errors.bounds import check_duration, check_number
from sa_jobqueue.layout import Layout
from sa_jobqueue.migrations.runner import current_version
from sa_jobqueue.models.base import verbatim
from sa_jobqueue.models.checks import check_name
from sa_jobqueue.models.options import DEFAULT_QUEUE, MAX_INTEGER
from sa_jobqueue.statements import row_security, schema

PATIENCE: Final = timedelta(seconds=30)
"""Time for which the check waits for older transactions."""
_PAUSE_SECONDS: Final = 0.1
_ISOLATION: Final = "read committed"
_NAMED: Final = 10
"""Number of workers, schedules and transactions that are named."""
_HIDDEN: Final = "row-level security may hide rows of {} from role {}"
_UNUSABLE: Final = "a table of jobs is in a schema of the search path that this role may not use"
_AS_OWNER: Final = "Migrate as the owner of the tables, or a role with BYPASSRLS"

_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class NoJobs:
    """The condition that no job of a type or in a queue is open; the fields are those of `require_no_jobs`."""

    layout: Layout
    type_name: str | None = None
    below_version: int | None = None
    queue: str | None = None
    include_dead: bool = False
    patience: timedelta = PATIENCE

    def __post_init__(self) -> None:
        if self.type_name is None and (self.queue is None or self.below_version is not None):
            raise InvalidOptionError("type_name", "name a job type; only `queue` without `below_version` needs none")
        for field, name in (("type_name", self.type_name), ("queue", self.queue)):
            if name is not None:
                check_name(field, name)
        if self.below_version is not None:
            check_number("below_version", self.below_version, 2, MAX_INTEGER)
        check_duration("patience", self.patience, or_zero=True)

    def check(self, connection: Connection, *, sleep: Callable[[float], None] = time.sleep) -> None:
        """Check the condition now, and again, without waiting, before the connection's transaction commits.

        In AUTOCOMMIT there is no second check, as all changes have been committed by then.
        Locks: none. Raises: OpenJobsError; SchemaError as `current_version`.
        """
        require_postgresql(connection.dialect.name)
        self._check(connection, sleep)
        driver, transaction = connection.connection.dbapi_connection, connection.get_transaction()
        if driver is not None and driver.autocommit:
            return

        @event.listens_for(connection, "commit", once=True)
        def check_again(_: Connection) -> None:
            if connection.get_transaction() is transaction:  # not another one, after a rollback
                self._check(connection, None)

    def _check(self, connection: Connection, sleep: Callable[[float], None] | None) -> None:
        if not current_version(connection, self.layout):
            if schemas := connection.scalars(schema.unusable_schemas(self.layout, "queue")).all():
                raise OpenJobsError(f"{_UNUSABLE}: {', '.join(schemas)}. {_AS_OWNER}")
            _log.info("table %s is not there, so there are no jobs to look for", self.layout.qualified("job"))
            return
        if (isolation := connection.scalar(text("SHOW transaction_isolation"))) != _ISOLATION:
            raise OpenJobsError(f"a {isolation} transaction sees no job that is committed meanwhile: use {_ISOLATION}")
        hiding = row_security.hiding(self.layout, ["job", "dead_letter", "worker", "schedule", "job_minute"])
        role_by_noun = {row.noun: row.role for row in connection.execute(hiding) if "SELECT" in row.commands}
        hidden = [_HIDDEN.format(self.layout.qualified(noun), role) for noun, role in role_by_noun.items()]
        if "job" in role_by_noun or (self.include_dead and "dead_letter" in role_by_noun):
            raise OpenJobsError(f"it is not known whether {self._jobs} are open: {'; '.join(hidden)}. {_AS_OWNER}")
        holders = [] if sleep is None else self._wait(connection, sleep)
        checked_at = connection.scalar(text("SELECT clock_timestamp()"))
        rows = connection.execute(verbatim(self._open_jobs)).all()
        dead_letters = connection.scalar(verbatim(self._dead_letters)) or 0
        sentences = [*self._facts(connection, rows, dead_letters), *hidden]
        if not (rows or holders or (self.include_dead and dead_letters)):
            _log.info("no open %s were committed at %s. %s", self._jobs, checked_at, ". ".join(sentences))
            return
        if holders:
            names = ", ".join(f"process {row.pid} ({row.name or 'unnamed'})" for row in holders[:_NAMED])
            older = f"transactions that wrote to {self.layout.qualified('job')} before have not ended within"
            sentences.insert(0, f"{older} {shown_duration(self.patience)}, and what they enqueued is not known: {names}")
        counts = ", ".join(f"{row.jobs:,} {row.status} in queue {row.queue!r}" for row in rows)
        summary = f"{self._jobs} are open at {checked_at}: {counts}"
        sentences.insert(0, summary if rows else f"no open {self._jobs} were committed at {checked_at}")
        raise OpenJobsError(
            ". ".join([*sentences, self._advice]),
            checked_at=checked_at,
            jobs={(row.queue, row.status): row.jobs for row in rows},
            dead_letters=dead_letters,
        )

    def _wait(self, connection: Connection, sleep: Callable[[float], None]) -> list[Row[Any]]:
        """Wait for the transactions that have written to the job table until now; return those that have not ended."""
        deadline = time.monotonic() + self.patience.total_seconds()
        holders = list(connection.execute(verbatim(self._holders)))
        while holders and time.monotonic() < deadline:
            sleep(_PAUSE_SECONDS)
            older = {row.transaction for row in holders}
            holders = [row for row in connection.execute(verbatim(self._holders)) if row.transaction in older]
        return holders

    def _facts(self, connection: Connection, rows: Sequence[Row[Any]], dead_letters: int) -> Iterator[str]:
        """Yield how long the jobs will take, who runs and enqueues more of them, and the dead letters."""
        if rows:
            minutes, ended = connection.execute(verbatim(self._ended)).one()
            pace = f"at the rate of the last {minutes} recorded minutes ({ended:,} ended, of all versions)"
            count = sum(row.jobs for row in rows)
            estimate = f"about {shown_duration(timedelta(minutes=count * minutes / ended))} {pace}" if ended else "not known"
            due = (
                f"; the last of them is due at {latest}"
                if (latest := max(filter(None, (row.latest for row in rows)), default=None))
                else ""
            )
            yield f"Time until they have ended: {estimate}{due}"
        for noun, statement in (("workers", self._workers), ("schedules", self._schedules)):
            names = connection.execute(verbatim(statement)).scalars().all()
            more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
            yield f"{noun}: {', '.join(names[:_NAMED]) or 'none seen'}{more}"
        if dead_letters:
            yield f"Unresolved dead letters: {dead_letters:,}{'' if self.include_dead else ' (allowed; see include_dead)'}"

    def block(self) -> str:
        """Return the first check as a `DO` block of a script, which raises."""
        hiding = row_security.hiding(self.layout, ["job", *["dead_letter"] * self.include_dead])
        hidden = _with_literals(hiding)
        jobs, advice = _literal(self._jobs), _literal(self._advice)
        dead_letters = self._dead_letters if self.include_dead else "SELECT 0"
        body = f"""
DECLARE
  older text[];
  give_up_at timestamptz := clock_timestamp() + interval '{self.patience.total_seconds()} s';
  summary text;
BEGIN
  IF to_regclass({_literal(self.layout.qualified("job"))}) IS NULL THEN
    IF EXISTS ({_with_literals(schema.unusable_schemas(self.layout, "queue"))}) THEN
      RAISE EXCEPTION '{_UNUSABLE}';
    END IF;
    RETURN;
  ELSIF current_setting('transaction_isolation') <> '{_ISOLATION}' THEN
    RAISE EXCEPTION 'a {_ISOLATION} transaction is needed to see jobs that are committed meanwhile';
  ELSIF EXISTS (SELECT FROM ({hidden}) AS hidden WHERE 'SELECT' = ANY (commands)) THEN
    RAISE EXCEPTION 'it is not known whether % are open: row-level security may hide rows', {jobs}
      USING HINT = '{_AS_OWNER}';
  END IF;
  older := ARRAY(SELECT transaction FROM ({self._holders}) AS holder);
  WHILE older <> '{{}}' LOOP
    IF clock_timestamp() > give_up_at THEN
      RAISE EXCEPTION 'it is not known whether % are open: older transactions wrote to the job table and go on', {jobs};
    END IF;
    PERFORM pg_sleep({_PAUSE_SECONDS});
    older := ARRAY(SELECT transaction FROM ({self._holders}) AS holder WHERE transaction = ANY (older));
  END LOOP;
  SELECT string_agg(format('%s %s in queue %s', jobs, status, queue), ', ') INTO summary FROM ({self._open_jobs}) AS counted;
  IF summary IS NOT NULL THEN
    RAISE EXCEPTION '% are open at %: %', {jobs}, clock_timestamp(), summary USING HINT = {advice};
  ELSIF ({dead_letters}) > 0 THEN
    RAISE EXCEPTION 'dead letters of % are not resolved', {jobs} USING HINT = {advice};
  END IF;
END
"""
        note = "-- psql goes on after an error unless it is started with -v ON_ERROR_STOP=1"
        return f"{note}\nDO $sa_jobqueue${body}$sa_jobqueue$"

    @property
    def _jobs(self) -> str:
        version = f" below version {self.below_version}" if self.below_version is not None else ""
        queue = f" in queue {self.queue!r}" if self.queue is not None else ""
        return f"jobs{f' of type {self.type_name!r}' if self.type_name is not None else ''}{version}{queue}"

    @property
    def _advice(self) -> str:
        names = (("--type", self.type_name), ("--queue", self.queue))
        options = "".join(f" {flag} {name}" for flag, name in names if name is not None)
        convert = ""
        if self.below_version is not None:
            convert = (
                f"or convert those that wait (UPDATE {self.layout.qualified('job')} SET input = ..., "
                f"input_version = {self.below_version} WHERE {self._where} AND status IN ('pending', 'blocked')); "
            )
        return (
            f"What to do: wait until workers of the old code have run them (sa-jobqueue jobs list{options}), and migrate "
            "again; or stop what enqueues them (sa-jobqueue schedules pause NAME) and run them now (sa-jobqueue worker OLD "
            f"--until-idle); {convert}or cancel them{', whatever their version' * bool(convert)} "
            f"(sa-jobqueue jobs cancel{options} --dry-run)"
        )

    @property
    def _where(self) -> str:
        conditions = [
            f"{column} = {_literal(name)}"
            for column, name in (("type_name", self.type_name), ("queue", self.queue))
            if name is not None
        ]
        if self.below_version is not None:
            conditions.append(f"input_version < {self.below_version}")
        return " AND ".join(conditions)

    @property
    def _holders(self) -> str:
        """Transactions that have written to the job table and not ended: `(transaction, pid, name)`."""
        return f"""\
SELECT lock.virtualtransaction AS transaction, lock.pid, activity.application_name AS name
FROM pg_locks AS lock LEFT JOIN pg_stat_activity AS activity ON activity.pid = lock.pid
WHERE lock.locktype = 'relation' AND lock.relation = to_regclass({_literal(self.layout.qualified("job"))}) AND lock.granted
  AND lock.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND lock.mode = 'RowExclusiveLock' AND lock.pid IS DISTINCT FROM pg_backend_pid()"""

    @property
    def _open_jobs(self) -> str:
        """Numbers of open jobs: `(queue, status, jobs, latest)`, of each status by its own index."""
        columns = "SELECT queue, status::text, scheduled_at, type_name, input_version"
        table = self.layout.qualified("job")
        return f"""\
SELECT queue, status, count(*) AS jobs, max(scheduled_at) FILTER (WHERE scheduled_at > clock_timestamp()) AS latest FROM (
  {columns} FROM {table} WHERE status = 'pending' AND priority >= '-9'
  UNION ALL {columns} FROM {table} WHERE status = 'running'
  UNION ALL {columns} FROM {table} WHERE status IN ('blocked', 'dead') AND status = 'blocked'
) AS open_job WHERE {self._where} GROUP BY queue, status ORDER BY queue, status"""

    @property
    def _dead_letters(self) -> str:
        return f"SELECT count(*) FROM {self.layout.qualified('dead_letter')} WHERE resolution IS NULL AND {self._where}"

    @property
    def _ended(self) -> str:
        """Figures of the last minutes: `(minutes, ended)`, of jobs of all versions."""
        return f"""\
SELECT count(DISTINCT minute) FILTER (WHERE queue = '' AND type_name = '') AS minutes,
  coalesce(sum(completed + died + cancelled) FILTER (WHERE {replace(self, below_version=None)._where}), 0) AS ended
FROM {self.layout.qualified("job_minute")} WHERE minute >= clock_timestamp() - interval '15 minutes'"""

    @property
    def _workers(self) -> str:
        """Names of live workers, with the version of the type that they know."""
        version = "''"
        conditions = ["heartbeat_at + heartbeat_pause > clock_timestamp() - interval '15 seconds'"]
        if self.type_name is not None:
            name = _literal(self.type_name)
            version = f"coalesce(' (version ' || (type_versions ->> {name}) || ')', '')"
            conditions.append(f"{name} = ANY (job_types)")
        if self.queue is not None:
            conditions.append(f"{_literal(self.queue)} = ANY (queues)")
        return f"SELECT id || {version} FROM {self.layout.qualified('worker')} WHERE {' AND '.join(conditions)} ORDER BY id"

    @property
    def _schedules(self) -> str:
        """Names of schedules whose jobs would be among them; null stands for the value recorded for the type."""
        columns = {"queue": f"'{DEFAULT_QUEUE}'", "input_version": "1"}
        recorded = [f"coalesce(s.{name}, t.{name}, {default}) AS {name}" for name, default in columns.items()]
        return f"""\
SELECT name || CASE WHEN paused_at IS NULL THEN '' ELSE ' (paused)' END FROM (
  SELECT s.name, s.type_name, s.paused_at, {", ".join(recorded)} FROM {self.layout.qualified("schedule")} AS s
  LEFT JOIN {self.layout.qualified("job_type")} AS t USING (type_name)
) AS schedule WHERE {self._where} ORDER BY name"""


def _with_literals(statement: ClauseElement) -> str:
    """Return a statement as SQL text, with its values in it."""
    dialect = postgresql.dialect(paramstyle="named")  # type: ignore[no-untyped-call]
    return str(statement.compile(dialect=dialect, compile_kwargs={"literal_binds": True}))


def _literal(name: str) -> str:
    return "'{}'".format(name.replace("'", "''"))

"""Archiving: choosing the finished chains that a run takes on, and the ledger of runs.

Candidates are collected in a temporary table, page by page, so that neither a snapshot nor a transaction is held while
the queue is walked, and a dry run writes nothing. Rows are read, compared and deleted by `statements/archived.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any
from typing import cast as typed

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import INTERVAL, TIMESTAMP
from sqlalchemy.schema import CreateTable, DropTable

from sa_jobqueue.ddl.v0001 import quoted
from sa_jobqueue.models.base import id_type
from sa_jobqueue.statements._parts import Tables, bound, statement
from sa_jobqueue.statements.retention import is_taken
from sa_jobqueue.types import ArchiveState


def settings(*, statement_timeout: timedelta, lock_timeout: timedelta, guarded: bool) -> sa.Select[Any]:
    """Bound everything that a connection of the archiver's own does, until it is closed.

    `guarded`: whether plans must go by indexes, as where rows of known chains are read and deleted.
    """
    # At least 1: zero would mean no timeout.
    statement_ms, lock_ms = (max(1, timeout // timedelta(milliseconds=1)) for timeout in (statement_timeout, lock_timeout))
    values = {
        "application_name": "sa_jobqueue archive",
        "statement_timeout": f"{statement_ms}ms",
        "lock_timeout": f"{lock_ms}ms",
        "idle_in_transaction_session_timeout": f"{statement_ms}ms",
        "TimeZone": "UTC",
        "DateStyle": "ISO",
        "jit": "off",
        # The plans of foreign keys' own checks, three for each job deleted, are made once; without it, ten times slower.
        "plan_cache_mode": "auto",
    }
    values |= dict.fromkeys(("enable_seqscan", "enable_hashjoin", "enable_mergejoin"), "off" if guarded else "on")
    return sa.select(*(sa.func.set_config(name, value, False) for name, value in values.items()))


@bound
def lock(t: Tables) -> sa.Select[Any]:
    """Acquire the archive lock of a queue for this session, waiting for at most `lock_timeout` while another one holds it.

    It waits because the session of an archiver that has just ended, or was killed, ends a moment later.
    Locks: an advisory lock, by the table's own number, until the session ends.
    """
    job = sa.func.to_regclass(t.layout.qualified("job"))
    name = sa.func.concat("sa_jobqueue archive of ", sa.cast(job, sa.Text))
    return sa.select(sa.func.pg_advisory_lock(sa.func.hashtextextended(name, 0)))


def columns(tables: Iterable[sa.Table]) -> sa.Select[str, str]:
    """Return the columns that tables have in the database. Shape: `(relname, attname)`, unordered. Locks: none."""
    pg_class = sa.table("pg_class", *map(sa.column, ("oid", "relname")), schema="pg_catalog")
    names = ("attrelid", "attname", "attnum", "attisdropped")
    pg_attribute = sa.table("pg_attribute", *map(sa.column, names), schema="pg_catalog")
    names_in_sql = [".".join(quoted(part) for part in (table.schema, table.name) if part) for table in tables]
    return (
        sa.select(
            sa.cast(pg_class.c.relname, sa.Text).label("relname"), sa.cast(pg_attribute.c.attname, sa.Text).label("attname")
        )
        .select_from(pg_class.join(pg_attribute, pg_attribute.c.attrelid == pg_class.c.oid))
        .where(pg_class.c.oid.in_([sa.func.to_regclass(name) for name in names_in_sql]))
        .where(pg_attribute.c.attnum > sa.literal_column("0"), ~pg_attribute.c.attisdropped)
    )


def cutoff() -> sa.Select[Any]:
    """Return the time `age` (a parameter, an interval) ago, and the current time. Clock: the database's."""
    age = sa.bindparam("age", type_=INTERVAL)
    instants: Any = sa.select((sa.func.now() - age).label("cutoff"), sa.func.now().label("now"))
    return typed("sa.Select[Any]", instants)


@statement
def candidates(t: Tables) -> sa.Table:
    """Return the temporary table of chains that may go: its name is the session's own."""
    return sa.Table(
        "archive_candidate",
        sa.MetaData(),
        sa.Column("chain_id", id_type(t.layout), primary_key=True),
        sa.Column("completed_on", sa.Date, nullable=False),
        sa.Column("jobs", sa.BigInteger, nullable=False),
        prefixes=["TEMPORARY"],
    )


@bound
def create_candidates(t: Tables) -> CreateTable:
    """Make the temporary table of `candidates`, empty."""
    return CreateTable(candidates(t.model))


@bound
def drop_candidates(t: Tables) -> DropTable:
    """Drop it, if it is there."""
    return DropTable(candidates(t.model), if_exists=True)


def analyze_candidates() -> sa.TextClause:
    """Give the planner statistics of the temporary table: autovacuum does not analyze temporary tables."""
    return sa.text("ANALYZE archive_candidate")


@statement
def choose(t: Tables, *, include_dead: bool, first: bool) -> sa.Select[Any]:
    """Read one page of jobs and add to the candidates those of their chains that have ended and are not in use.

    Left out: chains that ended at `cutoff` or later, that have waiters, whose result an open job has
    not taken, or, unless `include_dead`, that have an unresolved dead letter.
    Parameters: `after`, unless it is the `first` page; `scan`, how many jobs to read; `cutoff`; `room`, the maximum number
    of jobs of all candidates: the chain that reaches it is still taken, whole.
    Shape: one row `(scanned, last_scanned, fitting, taken, last_taken, jobs)`: how many jobs were read and the last one,
    how many chains fit, how many were taken and the last of them, and how many jobs these have.
    Changes: rows of the temporary table. Locks: none.
    Index: the primary key, `scan` entries; `uq_job_chain` and `uq_dead_letter_open` once a chain.
    """
    job, dead_letter, chosen_into = t.job, t.dead_letter, candidates(t.model)
    sibling = job.alias("other")
    columns = (job.c.id, job.c.root_id, job.c.chain_completed_at, job.c.has_waiters)
    page = sa.select(*columns).order_by(job.c.id).limit(sa.bindparam("scan", type_=sa.Integer))
    if not first:
        page = page.where(job.c.id > t.id("after"))
    page_cte = page.cte("page")
    at = page_cte.c
    length = 1 + sa.select(sa.func.count()).where(sibling.c.root_id == at.id).correlate(page_cte).scalar_subquery()
    fits = [
        at.root_id.is_(None),
        at.chain_completed_at < sa.bindparam("cutoff", type_=TIMESTAMP(timezone=True)),
        ~at.has_waiters,
        is_taken(t, page_cte),
    ]
    if not include_dead:
        is_unresolved = dead_letter.c.resolution.is_(None)
        fits.append(
            ~sa.exists(sa.select(dead_letter.c.id).where(is_unresolved, dead_letter.c.job_id == at.id).correlate(page_cte))
        )
        of_others = sa.select(dead_letter.c.id).select_from(sibling.join(dead_letter, dead_letter.c.job_id == sibling.c.id))
        fits.append(~sa.exists(of_others.where(is_unresolved, sibling.c.root_id == at.id).correlate(page_cte)))
    day = sa.cast(sa.func.timezone(sa.literal_column("'UTC'"), at.chain_completed_at), sa.Date)
    fitting = (
        sa.select(at.id, day.label("completed_on"), sa.cast(length, sa.BigInteger).label("jobs")).where(*fits).cte("fitting")
    )
    before = sa.func.sum(fitting.c.jobs).over(order_by=fitting.c.id) - fitting.c.jobs
    summed = sa.select(fitting, before.label("before")).subquery("summed")
    chosen = (
        sa.insert(chosen_into)
        .from_select(
            ["chain_id", "completed_on", "jobs"],
            sa.select(summed.c.id, summed.c.completed_on, summed.c.jobs).where(
                summed.c.before < sa.bindparam("room", type_=sa.BigInteger)
            ),
        )
        .returning(chosen_into.c.chain_id, chosen_into.c.jobs)
        .cte("taken")
    )

    def one(expression: Any) -> Any:
        return sa.select(expression).scalar_subquery()

    return sa.select(
        sa.select(sa.func.count()).select_from(page_cte).scalar_subquery().label("scanned"),
        # Not max(): PostgreSQL has it for UUIDs since version 18.
        sa.select(at.id).order_by(at.id.desc()).limit(1).scalar_subquery().label("last_scanned"),
        sa.select(sa.func.count()).select_from(fitting).scalar_subquery().label("fitting"),
        sa.select(sa.func.count()).select_from(chosen).scalar_subquery().label("taken"),
        sa.select(chosen.c.chain_id).order_by(chosen.c.chain_id.desc()).limit(1).scalar_subquery().label("last_taken"),
        one(sa.cast(sa.func.coalesce(sa.func.sum(chosen.c.jobs), 0), sa.BigInteger)).label("jobs"),
    )


@statement
def holders(t: Tables) -> sa.Select[Any]:
    """Name candidates that a job of a chain waits for, or waited, which is no candidate itself.

    Parameters: `limit`. Shape: `(chain_id, job_id, by_chain_id)`: the chain held, and the job and its chain that hold it.
    Locks: none. Index: `ix_job_blocker_chain` or all edges, and the primary key.
    """
    direct = _held_directly(t)
    columns = (direct.c.chain_id, direct.c.job_id, direct.c.by_chain_id)
    return sa.select(*columns).order_by(*columns).limit(sa.bindparam("limit", type_=sa.Integer))


@statement
def drop_held(t: Tables) -> sa.Delete:
    """Remove the candidates that a chain which stays waits for, or waited for, and all that these waited for in turn.

    Shape: `(chain_id,)` of each. Changes: the temporary table. Locks: none.
    Index: `ix_job_blocker_chain` or all edges, then `pk_job_blocker`, and `uq_job_chain` for continuations.
    """
    job, edge, candidate = t.job, t.blocker, candidates(t.model)
    direct = _held_directly(t)
    waited_for = sa.select(direct.c.chain_id.label("id")).cte("held", recursive=True)
    of_root = sa.select(edge.c.blocked_by_chain_id.label("id")).where(edge.c.job_id == waited_for.c.id)
    of_others = (
        sa.select(edge.c.blocked_by_chain_id.label("id"))
        .select_from(job.join(edge, edge.c.job_id == job.c.id))
        .where(job.c.root_id == waited_for.c.id)
    )
    blocker = sa.union_all(of_root.correlate(waited_for), of_others.correlate(waited_for)).lateral("blocker")
    below = waited_for.join(blocker, sa.true()).join(candidate, candidate.c.chain_id == blocker.c.id)
    waited_for = waited_for.union(sa.select(blocker.c.id).select_from(below))
    deletion: Any = (
        sa.delete(candidate).where(candidate.c.chain_id.in_(sa.select(waited_for.c.id))).returning(candidate.c.chain_id)
    )
    return typed("sa.Delete", deletion)


@statement
def months(t: Tables) -> sa.Select[Any]:
    """Count the candidates by type and month. Shape: `(type_name, month, chains, jobs)`, in that order."""
    job, candidate = t.job, candidates(t.model)
    month = sa.func.to_char(candidate.c.completed_on, sa.literal_column("'YYYY-MM'")).label("month")
    return (
        sa.select(
            job.c.type_name,
            month,
            sa.func.count().label("chains"),
            sa.cast(sa.func.sum(candidate.c.jobs), sa.BigInteger).label("jobs"),
        )
        .select_from(candidate.join(job, job.c.id == candidate.c.chain_id))
        .group_by(job.c.type_name, month)
        .order_by(job.c.type_name, month)
    )


@statement
def dependents(t: Tables) -> sa.Select[int, int, int, int]:
    """Count the rows of the candidates' jobs in other tables. Shape: one row `(attempts, dead_letters, blockers, steps)`."""
    job, candidate = t.job, candidates(t.model)
    jobs = sa.select(job.c.id).join(candidate, candidate.c.chain_id == job.c.chain_id)

    def count(table: sa.Table, name: str) -> Any:
        of_candidates = sa.select(sa.func.count()).select_from(table).where(table.c.job_id.in_(jobs))
        return of_candidates.scalar_subquery().label(name)

    return sa.select(
        count(t.attempt, "attempts"),
        count(t.dead_letter, "dead_letters"),
        count(t.blocker, "blockers"),
        count(t.step, "steps"),
    )


@statement
def begin(t: Tables) -> sa.Insert:
    """Write a run into the ledger. Parameters: `id`, `path`, `engine`, `cutoff`."""
    parameters = {name: sa.bindparam(name, type_=t.archive_run.c[name].type) for name in ("id", "path", "engine", "cutoff")}
    return sa.insert(t.archive_run).values(parameters)


@statement
def add_chains(t: Tables) -> sa.Insert:
    """Make all candidates chains of a run, in parts of about `read_batch_size` jobs, by the days on which they ended.

    Left out are those that were deleted, and those that another transaction holds, such as one of retention that is about
    to delete them: retention looks into `archive_chain` after it has locked a chain.
    Parameters: `run_id`, `read_batch_size`. Changes: rows of `archive_chain`. Locks: the roots, until the transaction
    ends. Index: the primary key.
    """
    chosen, chain = candidates(t.model), t.archive_chain
    free_roots = sa.select(chosen).select_from(chosen.join(t.job, t.job.c.id == chosen.c.chain_id)).order_by(t.job.c.id)
    candidate = free_roots.with_for_update(key_share=True, skip_locked=True, of=t.job).cte("candidate")
    order = (candidate.c.completed_on, candidate.c.chain_id)
    before = sa.func.sum(candidate.c.jobs).over(order_by=order) - candidate.c.jobs
    part = sa.cast(sa.func.div(before, sa.bindparam("read_batch_size", type_=sa.Numeric)), sa.Integer)
    rows = sa.select(sa.bindparam("run_id", type_=sa.Uuid()), candidate.c.chain_id, part, candidate.c.completed_on)
    return sa.insert(chain).from_select(["run_id", "chain_id", "part", "completed_on"], rows)


@statement
def advance(t: Tables) -> sa.Update:
    """Bring a run from one state to the next.

    Parameters: `run_id`, `was`, `becomes`, `n_chains`, `n_jobs`, `n_attempts`, `n_dead_letters`, `n_blockers`,
    `n_retained`. Changes: `state`, `changed_at`, the counts. Obliges: one row must be changed; if none is, the run is not
    where it should be.
    """
    run = t.archive_run
    names = ("chains", "jobs", "attempts", "dead_letters", "blockers", "retained")
    values: dict[str, Any] = {name: sa.bindparam(f"n_{name}", type_=sa.BigInteger) for name in names}
    values |= {"state": sa.bindparam("becomes", type_=sa.Text), "changed_at": sa.func.now()}
    at = (run.c.id == sa.bindparam("run_id", type_=sa.Uuid()), run.c.state == sa.bindparam("was", type_=sa.Text))
    return sa.update(run).where(*at).values(values)


@statement
def forget_run(t: Tables) -> sa.Delete:
    """Delete a run from the ledger that has not begun to delete rows. Parameters: `run_id`."""
    has_all = t.archive_run.c.state.in_(
        [sa.literal_column(f"'{state}'") for state in (ArchiveState.PLANNED, ArchiveState.WRITTEN)]
    )
    return sa.delete(t.archive_run).where(t.archive_run.c.id == sa.bindparam("run_id", type_=sa.Uuid()), has_all)


@statement
def forget_chains(t: Tables) -> sa.Delete:
    """Delete all that is left of the chains of a run. Parameters: `run_id`. Index: `ix_archive_chain_part`."""
    return sa.delete(t.archive_chain).where(t.archive_chain.c.run_id == sa.bindparam("run_id", type_=sa.Uuid()))


@statement
def runs(t: Tables, *, unfinished: bool) -> sa.Select[Any]:
    """Return the ledger, the oldest run first; or what of it is not done. Parameters: `limit`. Shape: all columns."""
    run = t.archive_run
    chosen = sa.select(run).order_by(run.c.started_at.desc(), run.c.id.desc()).limit(sa.bindparam("limit", type_=sa.Integer))
    if unfinished:
        chosen = chosen.where(run.c.state != sa.literal_column(f"'{ArchiveState.DONE}'"))
    newest = chosen.subquery("newest")
    return sa.select(newest).order_by(newest.c.started_at, newest.c.id)


def _held_directly(t: Tables) -> Any:
    """Return candidates and the jobs of other chains that refer to them."""
    job, edge, candidate = t.job, t.blocker, candidates(t.model)
    also_chosen = candidate.alias("other")
    referring = candidate.join(edge, edge.c.blocked_by_chain_id == candidate.c.chain_id).join(job, job.c.id == edge.c.job_id)
    goes_too = sa.exists(sa.select(sa.null()).select_from(also_chosen).where(also_chosen.c.chain_id == job.c.chain_id))
    columns = (candidate.c.chain_id, edge.c.job_id, job.c.chain_id.label("by_chain_id"))
    return sa.select(*columns).select_from(referring).where(~goes_too).subquery("direct")

"""Archiving: choosing the finished chains that a run takes on, and the ledger of runs.

Candidates are collected in a temporary table, page by page, so that neither a snapshot nor a transaction is held while
the queue is walked, and a dry run writes nothing. What is read, compared and deleted: `statements/archived.py`.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from typing import cast as typed

from sqlalchemy import (
    BigInteger,
    Column,
    Date,
    Delete,
    Insert,
    Integer,
    MetaData,
    Numeric,
    Select,
    Table,
    Text,
    TextClause,
    Update,
    Uuid,
    bindparam,
    cast,
    delete,
    exists,
    func,
    insert,
    literal_column,
    null,
    select,
    text,
    true,
    union_all,
    update,
)
from sqlalchemy.dialects.postgresql import INTERVAL, TIMESTAMP
from sqlalchemy.schema import CreateTable, DropTable

from sa_jobqueue.models import JobMixin
from sa_jobqueue.models.base import id_parameter, id_type
from sa_jobqueue.statements._parts import once_a_model, table
from sa_jobqueue.types import ArchiveState


def settings(*, statement_timeout: timedelta, lock_timeout: timedelta, guarded: bool) -> Select[Any]:
    """Bound everything that a connection of the archiver's own does, until it is closed.

    `guarded`: whether plans must go by indexes, as where rows of known chains are read and deleted.
    """
    wanted = {
        "application_name": "sa_jobqueue archive",
        "statement_timeout": f"{round(statement_timeout.total_seconds() * 1000)}ms",
        "lock_timeout": f"{round(lock_timeout.total_seconds() * 1000)}ms",
        "idle_in_transaction_session_timeout": f"{round(statement_timeout.total_seconds() * 1000)}ms",
        "TimeZone": "UTC",
        "DateStyle": "ISO",
        "jit": "off",
        # The plans of foreign keys' own checks, three for each job deleted, are made once; without it, ten times slower.
        "plan_cache_mode": "auto",
    }
    wanted |= dict.fromkeys(("enable_seqscan", "enable_hashjoin", "enable_mergejoin"), "off" if guarded else "on")
    return select(*(func.set_config(name, value, False) for name, value in wanted.items()))


def lock(model: type[JobMixin[Any]]) -> Select[Any]:
    """Acquire the archive lock of a queue for this session, waiting for at most `lock_timeout` while another one holds it.

    It waits because the session of an archiver that has just ended, or was killed, ends a moment later.
    Locks: an advisory lock, by the table's own number, until the session ends.
    """
    job = func.to_regclass(model.__jobqueue__.qualified("job"))
    name = func.concat("sa_jobqueue archive of ", cast(job, Text))
    return select(func.pg_advisory_lock(func.hashtextextended(name, 0)))


def cutoff() -> Select[Any]:
    """Return the time `age` (a parameter, an interval) ago, and the current time. Clock: the database's."""
    age = bindparam("age", type_=INTERVAL)
    found: Any = select((func.now() - age).label("cutoff"), func.now().label("now"))
    return typed("Select[Any]", found)


@once_a_model
def candidates(model: type[JobMixin[Any]]) -> Table:
    """Return the temporary table of chains that may go: its name is the session's own."""
    return Table(
        "archive_candidate",
        MetaData(),
        Column("chain_id", id_type(model.__jobqueue__), primary_key=True),
        Column("completed_on", Date, nullable=False),
        Column("jobs", BigInteger, nullable=False),
        prefixes=["TEMPORARY"],
    )


def create_candidates(model: type[JobMixin[Any]]) -> CreateTable:
    """Make the temporary table of `candidates`, empty."""
    return CreateTable(candidates(model))


def drop_candidates(model: type[JobMixin[Any]]) -> DropTable:
    """Drop it, if it is there."""
    return DropTable(candidates(model), if_exists=True)


def analyze_candidates() -> TextClause:
    """Give the planner statistics of the temporary table: autovacuum does not analyze temporary tables."""
    return text("ANALYZE archive_candidate")


@once_a_model
def choose(model: type[JobMixin[Any]], *, include_dead: bool, first: bool) -> Select[Any]:
    """Read one page of jobs and add to the candidates those of their chains that have ended and are not in use.

    Left out: chains that ended at `cutoff` or later, that have waiters, or, unless `include_dead`, an unresolved dead
    letter.
    Parameters: `after`, unless it is the `first` page; `scan`, how many jobs to read; `cutoff`; `room`, the maximum number
    of jobs of all candidates: the chain that reaches it is still taken, whole.
    Shape: one row `(scanned, last_scanned, fitting, taken, last_taken, jobs)`: how many jobs were read and the last one,
    how many chains fit, how many were taken and the last of them, and how many jobs these have.
    Changes: rows of the temporary table. Locks: none.
    Index: the primary key, `scan` entries; `uq_job_chain` and `uq_dead_letter_open` once a chain.
    """
    job, dead_letter, chosen_into = table(model), table(model.DeadLetter), candidates(model)
    other = job.alias("other")
    columns = (job.c.id, job.c.root_id, job.c.chain_completed_at, job.c.has_waiters)
    page = select(*columns).order_by(job.c.id).limit(bindparam("scan", type_=Integer))
    if not first:
        page = page.where(job.c.id > bindparam("after", type_=id_parameter(model.__jobqueue__)))
    page_cte = page.cte("page")
    at = page_cte.c
    length = 1 + select(func.count()).where(other.c.root_id == at.id).correlate(page_cte).scalar_subquery()
    fits = [
        at.root_id.is_(None),
        at.chain_completed_at < bindparam("cutoff", type_=TIMESTAMP(timezone=True)),
        ~at.has_waiters,
    ]
    if not include_dead:
        is_unresolved = dead_letter.c.resolution.is_(None)
        fits.append(
            ~exists(select(dead_letter.c.id).where(is_unresolved, dead_letter.c.job_id == at.id).correlate(page_cte))
        )
        of_others = select(dead_letter.c.id).select_from(other.join(dead_letter, dead_letter.c.job_id == other.c.id))
        fits.append(~exists(of_others.where(is_unresolved, other.c.root_id == at.id).correlate(page_cte)))
    day = cast(func.timezone(literal_column("'UTC'"), at.chain_completed_at), Date)
    fitting = select(at.id, day.label("completed_on"), cast(length, BigInteger).label("jobs")).where(*fits).cte("fitting")
    before = func.sum(fitting.c.jobs).over(order_by=fitting.c.id) - fitting.c.jobs
    summed = select(fitting, before.label("before")).subquery("summed")
    taken = (
        insert(chosen_into)
        .from_select(
            ["chain_id", "completed_on", "jobs"],
            select(summed.c.id, summed.c.completed_on, summed.c.jobs).where(
                summed.c.before < bindparam("room", type_=BigInteger)
            ),
        )
        .returning(chosen_into.c.chain_id, chosen_into.c.jobs)
        .cte("taken")
    )

    def one(of: Any) -> Any:
        return select(of).scalar_subquery()

    return select(
        select(func.count()).select_from(page_cte).scalar_subquery().label("scanned"),
        # Not max(): PostgreSQL has it for UUIDs since version 18.
        select(at.id).order_by(at.id.desc()).limit(1).scalar_subquery().label("last_scanned"),
        select(func.count()).select_from(fitting).scalar_subquery().label("fitting"),
        select(func.count()).select_from(taken).scalar_subquery().label("taken"),
        select(taken.c.chain_id).order_by(taken.c.chain_id.desc()).limit(1).scalar_subquery().label("last_taken"),
        one(cast(func.coalesce(func.sum(taken.c.jobs), 0), BigInteger)).label("jobs"),
    )


@once_a_model
def holders(model: type[JobMixin[Any]]) -> Select[Any]:
    """Name candidates that a job of a chain waits for, or waited, which is no candidate itself.

    Parameters: `limit`. Shape: `(chain_id, job_id, by_chain_id)`: the chain held, and the job and its chain that hold it.
    Locks: none. Index: `ix_job_blocker_chain` or all edges, and the primary key.
    """
    held = _held_directly(model)
    columns = (held.c.chain_id, held.c.job_id, held.c.by_chain_id)
    return select(*columns).order_by(*columns).limit(bindparam("limit", type_=Integer))


@once_a_model
def drop_held(model: type[JobMixin[Any]]) -> Delete:
    """Remove the candidates that a chain which stays waits for, or waited for, and all that these waited for in turn.

    Shape: `(chain_id,)` of each. Changes: the temporary table. Locks: none.
    Index: `ix_job_blocker_chain` or all edges, then `pk_job_blocker`, and `uq_job_chain` for continuations.
    """
    job, edge, candidate = table(model), table(model.Blocker), candidates(model)
    direct = _held_directly(model)
    held = select(direct.c.chain_id.label("id")).cte("held", recursive=True)
    of_root = select(edge.c.blocked_by_chain_id.label("id")).where(edge.c.job_id == held.c.id)
    of_others = (
        select(edge.c.blocked_by_chain_id.label("id"))
        .select_from(job.join(edge, edge.c.job_id == job.c.id))
        .where(job.c.root_id == held.c.id)
    )
    blocker = union_all(of_root.correlate(held), of_others.correlate(held)).lateral("blocker")
    below = held.join(blocker, true()).join(candidate, candidate.c.chain_id == blocker.c.id)
    held = held.union(select(blocker.c.id).select_from(below))
    deletion: Any = delete(candidate).where(candidate.c.chain_id.in_(select(held.c.id))).returning(candidate.c.chain_id)
    return typed("Delete", deletion)


@once_a_model
def months(model: type[JobMixin[Any]]) -> Select[Any]:
    """Count the candidates by type and month. Shape: `(type_name, month, chains, jobs)`, in that order."""
    job, candidate = table(model), candidates(model)
    month = func.to_char(candidate.c.completed_on, literal_column("'YYYY-MM'")).label("month")
    return (
        select(
            job.c.type_name,
            month,
            func.count().label("chains"),
            cast(func.sum(candidate.c.jobs), BigInteger).label("jobs"),
        )
        .select_from(candidate.join(job, job.c.id == candidate.c.chain_id))
        .group_by(job.c.type_name, month)
        .order_by(job.c.type_name, month)
    )


@once_a_model
def begin(model: type[JobMixin[Any]]) -> Insert:
    """Write a run into the ledger. Parameters: `id`, `path`, `engine`, `cutoff`."""
    run = table(model.ArchiveRun)
    given = {name: bindparam(name, type_=run.c[name].type) for name in ("id", "path", "engine", "cutoff")}
    return insert(run).values(given)


@once_a_model
def add_chains(model: type[JobMixin[Any]]) -> Insert:
    """Make all candidates chains of a run, in parts of about `read_batch_size` jobs, by the days on which they ended.

    Parameters: `run_id`, `read_batch_size`. Changes: rows of `archive_chain`.
    """
    candidate, chain = candidates(model), table(model.ArchiveChain)
    order = (candidate.c.completed_on, candidate.c.chain_id)
    before = func.sum(candidate.c.jobs).over(order_by=order) - candidate.c.jobs
    part = cast(func.div(before, bindparam("read_batch_size", type_=Numeric)), Integer)
    rows = select(bindparam("run_id", type_=Uuid()), candidate.c.chain_id, part, candidate.c.completed_on)
    return insert(chain).from_select(["run_id", "chain_id", "part", "completed_on"], rows)


@once_a_model
def parts(model: type[JobMixin[Any]]) -> Select[Any]:
    """Return of a run its parts and chains. Parameters: `run_id`. Shape: one row `(parts, chains)`."""
    chain = table(model.ArchiveChain)
    of_run = chain.c.run_id == bindparam("run_id", type_=Uuid())
    last = func.coalesce(func.max(chain.c.part) + 1, 0)
    found: Any = select(last.label("parts"), func.count().label("chains")).where(of_run)
    return typed("Select[Any]", found)


@once_a_model
def advance(model: type[JobMixin[Any]], *, counted: bool) -> Update:
    """Bring a run from one state to the next.

    Parameters: `run_id`, `was`, `becomes`; where `counted` `n_chains`, `n_jobs`, `n_attempts`, `n_dead_letters`,
    `n_blockers`, `n_retained`. Changes: `state`, `changed_at`, the counts. Obliges: one row must be changed; if none is,
    the run is not where it should be.
    """
    run = table(model.ArchiveRun)
    values: dict[str, Any] = {"state": bindparam("becomes", type_=Text), "changed_at": func.now()}
    if counted:
        names = ("chains", "jobs", "attempts", "dead_letters", "blockers", "retained")
        values |= {name: bindparam(f"n_{name}", type_=BigInteger) for name in names}
    at = (run.c.id == bindparam("run_id", type_=Uuid()), run.c.state == bindparam("was", type_=Text))
    return update(run).where(*at).values(values)


@once_a_model
def forget_run(model: type[JobMixin[Any]]) -> Delete:
    """Delete a run from the ledger that never got further than its plan. Parameters: `run_id`."""
    run = table(model.ArchiveRun)
    is_planned = run.c.state == literal_column(f"'{ArchiveState.PLANNED}'")
    return delete(run).where(run.c.id == bindparam("run_id", type_=Uuid()), is_planned)


@once_a_model
def forget_chains(model: type[JobMixin[Any]]) -> Delete:
    """Delete all that is left of the chains of a run. Parameters: `run_id`. Index: `pk_archive_chain`."""
    chain = table(model.ArchiveChain)
    return delete(chain).where(chain.c.run_id == bindparam("run_id", type_=Uuid()))


@once_a_model
def runs(model: type[JobMixin[Any]], *, unfinished: bool) -> Select[Any]:
    """Return the ledger, the oldest run first; or what of it is not done. Parameters: `limit`. Shape: all columns."""
    run = table(model.ArchiveRun)
    chosen = select(run).order_by(run.c.started_at.desc(), run.c.id.desc()).limit(bindparam("limit", type_=Integer))
    if unfinished:
        chosen = chosen.where(run.c.state != literal_column(f"'{ArchiveState.DONE}'"))
    newest = chosen.subquery("newest")
    return select(newest).order_by(newest.c.started_at, newest.c.id)


def _held_directly(model: type[JobMixin[Any]]) -> Any:
    """Return candidates and the jobs of other chains that refer to them."""
    job, edge, candidate = table(model), table(model.Blocker), candidates(model)
    other = candidate.alias("other")
    referring = candidate.join(edge, edge.c.blocked_by_chain_id == candidate.c.chain_id).join(job, job.c.id == edge.c.job_id)
    goes_too = exists(select(null()).select_from(other).where(other.c.chain_id == job.c.chain_id))
    columns = (candidate.c.chain_id, edge.c.job_id, job.c.chain_id.label("by_chain_id"))
    return select(*columns).select_from(referring).where(~goes_too).subquery("direct")

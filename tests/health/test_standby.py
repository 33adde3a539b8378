"""Every read works on a standby, and leaves out workers, sessions and locks of the primary."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from click.testing import CliRunner
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

from sa_jobqueue import Job, JobStatus
from sa_jobqueue.cli import main
from sa_jobqueue.dashboard import dashboard
from sa_jobqueue.observe.health import Code, health
from sa_jobqueue.observe.metrics.samples import measured
from sa_jobqueue.operations import Cause, ScheduleCause, explain_job, explain_schedule
from sa_jobqueue.testing.binaries import binary_dirs
from tests.dashboard.conftest import Client, everyone
from tests.fixtures.jobs import Jobs
from tests.fixtures.standbys import Standby, open_standby
from tests.fixtures.workers import wait_until

OF_PRIMARY = re.compile(
    r"heartbeat|start one|[Ss]tart a worker|no worker|is alive|session \d|pg_terminate|rescue|registered"
)
"""What nothing that is read on a standby may say."""


@pytest.fixture(scope="module", params=[pytest.param(0, marks=pytest.mark.long, id="oldest"), pytest.param(-1, id="newest")])
def standby(request: pytest.FixtureRequest) -> Iterator[Standby]:
    """Give a primary whose queue has jobs in every state, and only a dead worker, with its standby."""
    directories = binary_dirs()
    if not directories:
        pytest.skip("there are no PostgreSQL programs on this machine")
    if request.param == 0 and len(directories) == 1:
        pytest.skip("the oldest PostgreSQL at hand is also the newest")
    with open_standby(directories[request.param].path) as pair:
        stage(pair)
        pair.catch_up()
        yield pair


IDS: dict[str, Any] = {}


def stage(pair: Standby) -> None:
    """Write rows that a report on the primary would have much to say about."""
    jobs = Jobs(pair.engine)
    jobs.add_worker("web:1", name="web", silent_for=300)
    IDS["due"] = jobs.add(due_in=-1200)
    IDS["unserved"] = jobs.add(queue="mail", due_in=-1200)
    IDS["running"] = jobs.add(JobStatus.RUNNING, worker_id="web:1")
    IDS["orphan"] = jobs.add(JobStatus.RUNNING, worker_id="gone:1")
    IDS["later"] = jobs.add(due_in=1200)
    IDS["paused"] = jobs.add(queue="news", due_in=-1200)
    IDS["dead"] = jobs.add(JobStatus.DEAD, type_name="refund", error={"type": "BankError", "message": "no"})
    IDS["done"] = jobs.add(JobStatus.COMPLETED)
    with Session(pair.engine) as session, session.begin():
        blocked = Job("publish", {}, blockers=[session.get_one(Job, IDS["due"])], _handler=None)
        session.add(blocked)
        session.flush()
        IDS["blocked"] = blocked.id
        session.execute(text("INSERT INTO queue (name, paused_at, paused_by) VALUES ('news', now(), 'ann')"))
        late = "now() - interval '2 h'"
        session.execute(
            text(f"INSERT INTO schedule (name, type_name, cron, next_fire_at) VALUES ('nightly', 't', '@daily', {late})")
        )


COMMANDS = """
health --json|health|explain {due}|explain {running}|explain {blocked} --json|jobs list|jobs show {due}|chains list
chains show {due}|dead-letters list|dead-letters groups|events list|queues list|queues show news|queues shares|types list
types show test|schedules list|schedules show nightly|schedules explain nightly|schedules next nightly|thresholds list
workers list|audit list|writes list|trace {due}|jobs retry {dead} --dry-run|prune --older-than 1d --dry-run|doctor
"""


@pytest.mark.parametrize("command", COMMANDS.replace("\n", "|").strip("|").split("|"))
def test_every_command_that_reads_works_on_a_standby(command: str, standby: Standby) -> None:
    arguments = command.format(**IDS).split()
    result = CliRunner().invoke(main, arguments, env={"SA_JOBQUEUE_URL": standby.standby.socket_url})
    assert result.exit_code in {0, 1, 2}, result.output
    assert "database error" not in result.output
    assert "recovery" not in result.output
    assert "read-only transaction" not in result.output


def test_a_report_of_a_standby_says_nothing_about_workers_sessions_and_locks(standby: Standby) -> None:
    report = health(standby.replica)
    codes = {finding.code for finding in report.findings}
    assert codes == {Code.REPLICA, Code.DEAD_LETTERS, Code.PAUSED, Code.CLAIM_AGE}
    for finding in report.findings:
        if finding.code is not Code.REPLICA:
            assert not OF_PRIMARY.search(finding.summary + finding.advice), finding
    assert Code.NO_WORKER in {finding.code for finding in health(standby.engine).findings}
    samples = {sample.name for sample in measured(lambda: report)}
    assert "due_jobs" in samples
    assert not samples & {"live_workers", "silent_workers", "slots", "saturation_ratio", "orphaned_jobs"}


CAUSES = {
    "due": Cause.NOT_MEASURED,
    "unserved": Cause.NOT_MEASURED,
    "running": Cause.RUNNING,
    "orphan": Cause.RUNNING,
    "later": Cause.SCHEDULED,
    "paused": Cause.QUEUE_PAUSED,
    "dead": Cause.DEAD,
    "done": Cause.COMPLETED,
    "blocked": Cause.BLOCKED,
}


@pytest.mark.parametrize(("name", "cause"), CAUSES.items())
def test_a_job_is_explained_on_a_standby_by_its_rows_alone(name: str, cause: Cause, standby: Standby) -> None:
    with Session(standby.replica) as session:
        explained = explain_job(session, IDS[name])
    assert explained.cause is cause
    assert not OF_PRIMARY.search(explained.sentence), explained.sentence
    if cause not in {Cause.DEAD, Cause.COMPLETED}:
        assert "This is what a replica shows, which replayed its last transaction" in explained.sentence


def test_a_schedule_is_explained_on_a_standby_by_its_row_alone(standby: Standby) -> None:
    with Session(standby.replica) as session:
        explained = explain_schedule(session, "nightly")
    assert explained.cause is ScheduleCause.NOT_MEASURED
    assert explained.sentence.startswith("It has been due for 2 h; a replica does not show the workers, sessions")


PAGES = """
overview jobs chains dead-letters queues job-types fairness-keys limits schedules events workers storage audit
queue?name=news job-type?name=test job?id={due} job?id={running} job?id={blocked} chain?id={due}
"""


@pytest.mark.parametrize("path", PAGES.split())
def test_every_page_works_on_a_standby(path: str, standby: Standby, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sa_jobqueue.dashboard.sampler.PATIENCE", 60.0)
    engine = create_engine(standby.standby.socket_url)
    page = Client(dashboard(engine, operator=engine, authorize=everyone)).page(f"/queue/{path.format(**IDS)}")
    engine.dispose()
    words = re.sub(r"<script.*?</script>|<[^>]+>", " ", page, flags=re.DOTALL)
    assert "start one" not in words
    assert "Start a worker" not in words
    assert "pg_terminate_backend" not in words


def test_a_lock_that_is_replayed_is_named_as_one_of_the_primary(standby: Standby) -> None:
    replayed_locks = text(
        "SELECT count(*) FROM pg_locks WHERE mode = 'AccessExclusiveLock' AND relation = 'dead_letter'::regclass"
    )
    with standby.engine.connect() as altering, standby.replica.connect() as connection:
        altering.execute(text("LOCK TABLE dead_letter IN ACCESS EXCLUSIVE MODE"))
        altering.execute(text("SELECT pg_current_xact_id(), pg_logical_emit_message(false, 'flush', '')"))
        watcher = connection.execution_options(isolation_level="AUTOCOMMIT")
        wait_until(lambda: watcher.scalar(replayed_locks) == 1, description="the replay of the lock")
        with Session(standby.replica) as session:
            explained = explain_job(session, IDS["dead"], timeout=timedelta(seconds=1))
        report = health(standby.replica, timeout=timedelta(seconds=1))
    assert "The replay of the primary's transactions (pid " in explained.sentence
    assert "holds an ACCESS EXCLUSIVE lock on dead_letter" in explained.sentence
    assert "Look at the primary, where a transaction such as an ALTER TABLE is open." in explained.sentence
    assert "pg_monitor" not in explained.sentence
    assert report.missing
    assert "start one" not in str(report.findings)

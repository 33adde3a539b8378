"""`flask jobs ...` and handlers in the application's context, with Flask-SQLAlchemy and with a plain session factory."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flask import Flask, current_app, g, has_app_context
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import Engine, Integer, select
from sqlalchemy.orm import Mapped, Session, mapped_column, sessionmaker

from sa_jobqueue import JobMixin, JobQueue, JobStatus
from sa_jobqueue.integrations.flask import FlaskJobs
from sa_jobqueue.testing.databases import ThrowAwayDatabase
from sa_jobqueue.testing.servers import PostgresServer
from tests.fixtures.workers import quick

db: Any = SQLAlchemy()


class Job(JobMixin, db.Model):  # type: ignore[misc]
    """A job of the blog."""


class Post(db.Model):  # type: ignore[misc]
    id: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    title: Mapped[str]


jobs = JobQueue(Job)
queue = FlaskJobs(jobs, db)
torn_down: list[str] = []


@jobs.handler("retitle", max_attempts=1)
def retitle(title: str, session: Session) -> str:
    """Change a post by a function of the application, which uses `db.session`."""
    g.title = title  # of this attempt alone
    _set_title(title)
    assert session is db.session()
    return str(current_app.config["BLOG"])


def _set_title(title: str) -> None:
    db.session.get(Post, len(title)).title = g.title
    if title == "bad":
        raise ValueError(title)


def create_app(url: str | None = None) -> Flask:
    """Create the application; `flask --app tests.integrations.test_flask` finds this."""
    app = Flask(__name__)
    app.config.update(SQLALCHEMY_DATABASE_URI=url or os.environ["BLOG_URL"], BLOG="ours")
    db.init_app(app)
    queue.init_app(app)

    @app.teardown_appcontext
    def note(error: object) -> None:
        torn_down.append(g.get("title", ""))

    return app


@pytest.fixture
def empty_database_url(jobqueue_server: PostgresServer) -> Iterator[str]:
    with ThrowAwayDatabase(jobqueue_server.url) as database:
        yield database.url


@pytest.fixture
def app(empty_database_url: str) -> Iterator[Flask]:
    app = create_app(empty_database_url)
    with app.app_context():
        db.create_all()
        db.session.add_all([Post(id=number, title="-") for number in (3, 4, 5)])
        db.session.commit()
    yield app
    with app.app_context():
        db.engine.dispose()


async def test_functions_using_db_session_join_the_jobs_transaction(app: Flask) -> None:
    torn_down.clear()
    with app.app_context():
        db.session.add_all([retitle.job(title) for title in ("good", "bad", "great")])
        db.session.commit()
    await queue.worker(options=quick(concurrency=3)).run_until_idle()
    assert not has_app_context()
    with app.app_context():
        assert {post.id: post.title for post in db.session.scalars(select(Post))} == {3: "-", 4: "good", 5: "great"}
        outputs = {job.input: job.output for job in db.session.scalars(select(Job))}
        assert outputs == {"good": "ours", "bad": None, "great": "ours"}
    assert sorted(torn_down)[-3:] == ["bad", "good", "great"]


def test_flask_jobs_has_the_commands_for_the_applications_database(app: Flask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SA_JOBQUEUE_URL", "postgresql://elsewhere.invalid/nothing")
    monkeypatch.setenv("SA_JOBQUEUE_APP", "shop:jobs")
    with app.app_context():
        db.session.add(retitle.job("good"))
        db.session.commit()
    runner = app.test_cli_runner()
    listed = runner.invoke(args=["jobs", "jobs", "list"])
    assert (listed.exit_code, "retitle" in listed.output) == (0, True), listed.output
    assert runner.invoke(args=["jobs", "queues", "pause", "default"]).exit_code == 0
    refused = runner.invoke(args=["jobs", "jobs", "show", "x"])
    assert (refused.exit_code, "not a UUID" in refused.output) == (2, True)
    assert "Run jobs with an application's handlers" in runner.invoke(args=["jobs", "--help"]).output


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.long)])
def test_flask_jobs_worker_runs_handlers_with_the_applications_session(
    app: Flask, empty_database_url: str, processes: int
) -> None:
    with app.app_context():
        db.session.add(retitle.job("good"))
        db.session.commit()
    environment = os.environ | {"BLOG_URL": empty_database_url}
    environment.pop("SA_JOBQUEUE_URL", None)
    command = ["flask", "--app", __name__, "jobs", "worker", "--log-level", "debug", "--processes", str(processes)]
    with subprocess.Popen(
        [sys.executable, "-m", *command],
        cwd=Path(__file__).parents[2],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    ) as worker:
        assert worker.stderr is not None
        lines = []
        for line in worker.stderr:
            lines.append(line)
            if "completed in" in line:
                break
        worker.terminate()
        lines.append(worker.stderr.read())
    assert worker.returncode == 0, "".join(lines)
    with app.app_context():
        assert db.session.scalars(select(Job.output)).all() == ["ours"]
        assert db.session.get(Post, 4).title == "good"


async def test_flask_works_with_a_plain_session_factory(engine: Engine) -> None:
    plain = JobQueue()
    extension = FlaskJobs(plain, sessionmaker(engine))
    with pytest.raises(RuntimeError, match=r"call init_app\(app\) first"):
        _ = extension.app

    @plain.handler("name")
    async def name(payload: None) -> str:
        return current_app.name

    extension.init_app(Flask("blog"))
    with Session(engine) as session, session.begin():
        job = name.job(None)
        session.add(job)
        job_id = job.id
    await extension.worker(options=quick()).run_until_idle()
    with Session(engine) as session:
        done = session.get_one(plain.model, job_id)
        assert (done.status, done.output) == (JobStatus.COMPLETED, "blog")

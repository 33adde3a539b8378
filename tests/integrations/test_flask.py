"""`flask jobs ...` and handlers in the application's context, with Flask-SQLAlchemy and with a plain session factory."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from flask import Flask, current_app, g, has_app_context
from flask import request as flask_request
from flask import session as flask_session
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import Engine, Integer, create_engine, delete, event, select, text, update
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Mapped, Session, mapped_column, scoped_session, sessionmaker
from starlette.exceptions import HTTPException
from starlette.requests import Request
from typing_extensions import TypedDict

from sa_jobqueue import JobMixin, JobQueue, JobStatus, Worker
from sa_jobqueue.dashboard import Access, dashboard
from sa_jobqueue.errors import HandlerCommitError, IsolatedHandlerError, UncommittedWritesError
from sa_jobqueue.integrations.flask import FlaskJobs
from sa_jobqueue.testing import Drained, drain, perform
from tests.dashboard.conftest import Client
from tests.fixtures.variants import variants
from tests.fixtures.workers import quick

pytestmark = pytest.mark.every_python


@pytest.fixture(autouse=True)
def own_environment() -> Iterator[None]:
    """Undo what `flask jobs` sets in the environment for the command that it runs."""
    before = os.environ.copy()
    yield
    os.environ.clear()
    os.environ.update(before)


db: Any = SQLAlchemy()


class Job(JobMixin, db.Model):  # type: ignore[misc]
    """A job of the blog."""


class Post(db.Model):  # type: ignore[misc]
    id: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    title: Mapped[str]


jobs = JobQueue(Job)
queue = FlaskJobs(jobs, db)
in_processes = JobQueue(Job)  # of its own: a worker of these handlers starts a process
queue_of_processes = FlaskJobs(in_processes, db)
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


feature = JobQueue(Job)


@feature.handler("in-feature", max_attempts=1)
def in_feature(post_id: int) -> None:
    db.session.add(Post(id=post_id, title="feature"))


jobs.include(feature)


def write(post_id: int, how: str) -> None:
    """Write a post in one of the ways that applications do, through `db.session`."""
    match how:
        case "new":
            db.session.add(Post(id=post_id, title="new"))
        case "flushed":
            db.session.add(Post(id=post_id, title="new"))
            db.session.flush()
        case "dirty":
            db.session.get(Post, post_id).title = "new"
        case "deleted":
            db.session.delete(db.session.get(Post, post_id))
        case "statement":
            db.session.execute(update(Post).where(Post.id == post_id).values(title="new"))
        case "raw":
            db.session.execute(text("UPDATE post SET title = 'new' WHERE id = :id"), {"id": post_id})
        case "savepoint":
            with db.session.begin_nested():
                db.session.get(Post, post_id).title = "new"


WAYS = ["new", "flushed", "dirty", "deleted", "statement", "raw", "savepoint"]


class Write(TypedDict):
    post_id: int
    how: str


@jobs.handler("with-session", max_attempts=1)
def with_session(payload: Write, session: Session) -> bool:
    write(payload["post_id"], payload["how"])
    return session is db.session()


@jobs.handler("with-async-session", max_attempts=1)
async def with_async_session(payload: Write, session: AsyncSession) -> None:
    write(payload["post_id"], payload["how"])


@jobs.batch_handler("in-batch", max_size=10, max_attempts=1)
def in_batch(payloads: list[Write], session: Session) -> list[None]:
    for payload in payloads:
        write(payload["post_id"], payload["how"])
    return [None for _ in payloads]


@jobs.batch_handler("in-batch-without-session", max_size=10, max_attempts=1)
def in_batch_without_session(payloads: list[Write]) -> list[None]:
    for payload in payloads:
        write(payload["post_id"], payload["how"])
    return [None for _ in payloads]


@jobs.handler("without-session", max_attempts=1)
def without_session(payload: Write) -> None:
    write(payload["post_id"], payload["how"])


@jobs.handler("async-without-session", max_attempts=1)
async def async_without_session(payload: Write) -> None:
    write(payload["post_id"], payload["how"])


@in_processes.handler("in-child", max_attempts=1, isolation="process")
def in_child(payload: Write) -> str:
    write(payload["post_id"], payload["how"])
    return str(current_app.config["BLOG"])


@in_processes.handler("async-in-child", max_attempts=1, isolation="process")
async def async_in_child(payload: Write) -> None:
    write(payload["post_id"], payload["how"])


@jobs.handler("commits", max_attempts=1)
def commits(payload: Write) -> None:
    write(payload["post_id"], payload["how"])
    db.session.commit()


@in_processes.handler("commits-in-child", max_attempts=1, isolation="process")
def commits_in_child(payload: Write) -> None:
    write(payload["post_id"], payload["how"])
    db.session.commit()


@jobs.handler("reads", max_attempts=1)
def reads(payload: Write) -> str:
    post = db.session.get(Post, payload["post_id"])
    post.title = post.title  # marked as dirty, and not changed
    write(payload["post_id"], payload["how"])
    db.session.rollback()
    return str(db.session.scalar(select(Post.title)))


@jobs.handler("commits-handlers-session", max_attempts=1)
def commits_handlers_session(payload: Write, session: Session) -> None:
    write(payload["post_id"], payload["how"])
    db.session.commit()


NO_SESSION = [without_session, async_without_session, in_batch_without_session]


def create_app(url: str | None = None) -> Flask:
    """Create the application; `flask --app tests.integrations.test_flask` finds this."""
    app = Flask(__name__)
    app.config.update(SQLALCHEMY_DATABASE_URI=url or os.environ["BLOG_URL"], BLOG="ours")
    db.init_app(app)
    queue_of_processes.init_app(app)
    queue.init_app(app)

    @app.teardown_appcontext
    def note(error: object) -> None:
        torn_down.append(g.get("title", ""))

    return app


@pytest.fixture
def app(database_url: str) -> Iterator[Flask]:
    app = create_app(database_url)
    with app.app_context():
        Post.__table__.create(db.engine)
        db.session.add_all([Post(id=number, title="-") for number in (3, 4, 5)])
        db.session.commit()
    yield app
    with app.app_context():
        Post.__table__.drop(db.engine)
        db.engine.dispose()


@pytest.mark.slow
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


def test_commands_that_take_the_registry_have_the_applications(app: Flask) -> None:
    runner = app.test_cli_runner()
    for command in (["worker"], ["queues", "sync"]):
        refused = runner.invoke(args=["jobs", *command, "shop.jobs:jobs"])
        assert (refused.exit_code, "MODULE:ATTRIBUTE" in refused.output) == (2, False), refused.output
        assert "unexpected extra argument" in refused.output
    for command in (["queues", "sync"], ["schedules", "sync"], ["doctor"], ["prune", "--dry-run"], ["jobs", "list"]):
        result = runner.invoke(args=["jobs", *command])
        assert result.exit_code in {0, 1}, (command, result.output)  # 1: `doctor` has advice
        assert "Usage" not in result.output
    refused = runner.invoke(args=["jobs", "worker", "--concurrency", "x"])
    assert (refused.exit_code, "worker [OPTIONS]\n" in refused.output) == (2, True)


def test_the_dashboard_reads_the_applications_login(app: Flask, engine: Engine) -> None:
    app.secret_key = "s"

    @app.post("/login/<name>")
    def login(name: str) -> str:
        flask_session["user"] = name
        return name

    users: list[str] = []

    def authorize(request: Request) -> Access | None:
        with queue.request_context(request):
            user = flask_session.get("user")
            users.append(flask_request.path)
        if user is None:
            return None
        if user != "admin":
            raise HTTPException(403, "Only for administrators.")
        return Access(user=user)

    pages = Client(dashboard(engine, jobs, authorize=authorize, hosts=["*"]), prefix="")
    assert pages.get("/queue/jobs").status_code == 401
    for user, status, words in (("mallory", 403, "Only for administrators."), ("admin", 200, "admin")):
        cookie = app.test_client().post(f"/login/{user}").headers["Set-Cookie"].partition(";")[0]
        page = pages.get("/queue/jobs", headers={"Cookie": f"other=1; {cookie}"})
        assert (page.status_code, words in page.text) == (status, True)
    forged = pages.get("/queue/jobs", headers={"Cookie": cookie[:-2]})
    assert forged.status_code == 401
    assert set(users) == {"/queue/jobs"}


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.long)])
def test_flask_jobs_worker_runs_handlers_with_the_applications_session(
    app: Flask, database_url: str, processes: int
) -> None:
    with app.app_context():
        db.session.add(retitle.job("good"))
        db.session.commit()
    environment = os.environ | {"BLOG_URL": database_url}
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


def enqueue(app: Flask, handler: Any, how: str) -> None:
    with app.app_context():
        db.session.add(handler.job({"post_id": 9 if how in {"new", "flushed"} else 4, "how": how}))
        db.session.commit()


def run_by(runner: str, app: Flask, by: FlaskJobs = queue) -> Drained:
    """Run the jobs with the engine or session of a test or a program: a plain engine, or the application's session."""
    with app.app_context():
        if runner == "drain with the engine":
            return cast("Drained", drain(by.jobs, db.engine))
        if runner == "drain with the session":
            drained = drain(by.jobs, db.session)
            db.session.commit()
            return cast("Drained", drained)
        if runner == "drain of the feature":
            return cast("Drained", drain(feature, db.engine))
    plain = create_engine(db_url(app))
    worker = by.worker() if runner == "the application's worker" else Worker(by.jobs, plain)
    asyncio.run(worker.run_until_idle())
    plain.dispose()
    with app.app_context():
        errors = [error for error in db.session.scalars(select(Job.last_error)) if error]
    if errors:
        raise RuntimeError(errors[0])
    return Drained()


def db_url(app: Flask) -> str:
    return str(app.config["SQLALCHEMY_DATABASE_URI"])


def is_written(app: Flask, how: str) -> bool:
    with app.app_context():
        if how in {"new", "flushed"}:
            return db.session.get(Post, 9) is not None
        post = db.session.get(Post, 4)
        return post is None if how == "deleted" else bool(post.title == "new")


RUNNERS = ["drain with the engine", "drain with the session", "a plain worker", "the application's worker"]
by_each_runner = pytest.mark.parametrize("runner", variants(RUNNERS, default=[RUNNERS[0], RUNNERS[-1]]))


@pytest.mark.slow
@by_each_runner
@pytest.mark.parametrize("handler", [with_session, in_batch], ids=lambda handler: handler.name)
def test_writes_through_db_session_are_the_handlers(app: Flask, runner: str, handler: Any) -> None:
    for how in ("new", "raw"):
        enqueue(app, handler, how)
    run_by(runner, app)
    assert is_written(app, "new")
    assert is_written(app, "raw")
    with app.app_context():
        assert set(db.session.scalars(select(Job.status))) == {JobStatus.COMPLETED}
        assert set(db.session.scalars(select(Job.output)).all()) <= {None, True}


@pytest.mark.slow
@by_each_runner
@pytest.mark.parametrize("handler", NO_SESSION, ids=lambda handler: handler.name)
def test_writes_left_uncommitted_without_a_session_fail_the_attempt(app: Flask, runner: str, handler: Any) -> None:
    enqueue(app, handler, "new")
    with pytest.raises((UncommittedWritesError, RuntimeError), match="takes no session and left writes"):
        run_by(runner, app)
    assert not is_written(app, "new")


@pytest.mark.slow
@pytest.mark.parametrize("how", variants(WAYS, default=["new", "deleted", "raw"]))
def test_every_way_of_writing_is_noticed(app: Flask, how: str) -> None:
    enqueue(app, without_session, how)
    with app.app_context(), pytest.raises(UncommittedWritesError) as raised:
        drain(jobs, db.engine)
    assert raised.value.place == f"{__name__}:without_session"
    assert not is_written(app, how)
    enqueue(app, with_session, how)
    run_by("drain with the engine", app)
    assert is_written(app, how)


def test_an_async_session_is_not_db_session(app: Flask) -> None:
    enqueue(app, with_async_session, "new")
    with app.app_context(), pytest.raises(UncommittedWritesError, match="annotate a session argument"):
        drain(jobs, db.engine)


@pytest.mark.slow
@by_each_runner
def test_a_handler_without_a_session_may_commit_or_roll_back(app: Flask, runner: str) -> None:
    enqueue(app, reads, "raw")
    run_by(runner, app)
    assert not is_written(app, "raw")
    enqueue(app, commits, "raw")
    run_by(runner, app)
    assert is_written(app, "raw")


@by_each_runner
def test_a_handler_with_a_session_must_not_commit_db_session(app: Flask, runner: str) -> None:
    enqueue(app, commits_handlers_session, "raw")
    with pytest.raises((HandlerCommitError, RuntimeError), match="must not commit"):
        run_by(runner, app)
    assert not is_written(app, "raw")


@pytest.mark.parametrize(
    "runner", variants([*RUNNERS, "drain of the feature"], default=[RUNNERS[-1], "drain of the feature"])
)
def test_handlers_of_an_included_registry_are_covered(app: Flask, runner: str) -> None:
    with app.app_context():
        db.session.add(in_feature.job(9))
        db.session.commit()
    with pytest.raises((UncommittedWritesError, RuntimeError), match=r"in_feature takes no session"):
        run_by(runner, app)


@pytest.mark.slow
@pytest.mark.parametrize("runner", variants([*RUNNERS[:2], RUNNERS[-1]], default=[RUNNERS[-1]]))
def test_child_processes_run_handlers_in_the_applications_context(
    app: Flask, runner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLASK_APP", __name__)
    monkeypatch.setenv("BLOG_URL", db_url(app))
    enqueue(app, commits_in_child, "raw")
    run_by(runner, app, queue_of_processes)
    assert is_written(app, "raw")
    for handler in (in_child, async_in_child):
        enqueue(app, handler, "new")
        with pytest.raises(
            (IsolatedHandlerError, UncommittedWritesError, RuntimeError), match="takes no session and left writes"
        ):
            run_by(runner, app, queue_of_processes)
        with app.app_context():
            db.session.execute(delete(Job))
            db.session.commit()
    assert not is_written(app, "new")


async def test_perform_calls_a_handler_in_the_applications_context(app: Flask) -> None:
    with app.app_context():
        assert perform(with_session, {"post_id": 4, "how": "raw"}, session=db.session) is True
        assert db.session.get(Post, 4).title == "new"
        db.session.rollback()
    for handler in (without_session, in_batch_without_session):
        with pytest.raises(UncommittedWritesError):
            perform(handler, {"post_id": 9, "how": "new"})
    with pytest.raises(UncommittedWritesError):
        await perform(async_without_session, {"post_id": 9, "how": "new"})


def test_listeners_on_db_session_see_the_handlers_commit(app: Flask) -> None:
    calls: list[str] = []

    def note(session: Session) -> None:
        if session.info.get("sa_jobqueue.guard") is not None:
            calls.append(current_app.name)

    enqueue(app, with_session, "new")
    with app.app_context():
        event.listen(db.session, "before_commit", note)
    try:
        run_by("the application's worker", app)
    finally:
        with app.app_context():
            event.remove(db.session, "before_commit", note)
    assert calls == [__name__]


def test_a_scoped_session_of_the_application_is_the_handlers(engine: Engine) -> None:
    current = scoped_session(sessionmaker(engine))
    own_queue = JobQueue()
    extension = FlaskJobs(own_queue, current)
    extension.init_app(Flask("blog"))

    @own_queue.handler("with", max_attempts=1)
    def with_it(payload: None, session: Session) -> bool:
        return session is current()

    @own_queue.handler("without", max_attempts=1)
    def without(payload: None) -> None:
        current.execute(text("CREATE TABLE left_open ()"))

    with Session(engine) as session, session.begin():
        job = with_it.job(None)
        session.add(job)
        job_id = job.id
    drain(own_queue, engine)
    with Session(engine) as session, session.begin():
        assert session.get_one(own_queue.model, job_id).output is True
        session.add(without.job(None))
    with pytest.raises(UncommittedWritesError):
        drain(own_queue, engine)


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

"""The queue in a Flask application: `flask jobs ...`, and handlers that run in the application's context.

    db = SQLAlchemy()
    jobs = JobQueue(Job)
    queue = FlaskJobs(jobs, db)

    def create_app() -> Flask:
        app = Flask(__name__)
        db.init_app(app)
        queue.init_app(app)
        return app

A registry that is included in another one needs its own `FlaskJobs`, or `other.middleware(queue.in_app_context)`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

import click
from flask import Flask, current_app, has_app_context
from flask.cli import ScriptInfo, with_appcontext
from sqlalchemy import Engine
from sqlalchemy.orm import scoped_session, sessionmaker
from werkzeug.local import LocalProxy

from sa_jobqueue.cli import LazyGroup
from sa_jobqueue.context import AttemptContext
from sa_jobqueue.registry import JobQueue, Proceed
from sa_jobqueue.worker import Worker

if TYPE_CHECKING:
    from flask_sqlalchemy import SQLAlchemy

__all__ = ["FlaskJobs", "current_jobs"]

_EXTENSION: Final = "sa_jobqueue"


class FlaskJobs:
    """Connects a registry with a Flask application and its database.

    - Each attempt of the registry's handlers runs in a new application context.
    - With Flask-SQLAlchemy, the session that a handler asks for is `db.session`: functions of the application that use
      `db.session` take part in the transaction that completes the job. They must not commit it.
    - `flask jobs ...` has all commands of `sa-jobqueue`, for the application's database; `flask jobs worker` runs a worker.

    `jobs`: the registry. `db`: Flask-SQLAlchemy's object, or a `sessionmaker` bound to an engine. `app`: the application;
    None to pass it to `init_app` later.
    """

    def __init__(self, jobs: JobQueue[Any], db: SQLAlchemy | sessionmaker[Any], app: Flask | None = None) -> None:
        self.jobs = jobs
        self._db = db
        self._app: Flask | None = None
        jobs.middleware(self.in_app_context)
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask) -> None:
        """Add `flask jobs` to an application, and run handlers in its context; the last one, if there are several.

        `app`: the application.
        """
        self._app = app
        app.extensions[_EXTENSION] = self
        app.cli.add_command(_commands())

    @property
    def app(self) -> Flask:
        """The current application, or the one that this was initialized with. Raises: RuntimeError without one."""
        if has_app_context() and current_app.extensions.get(_EXTENSION) is self:
            return current_app._get_current_object()  # type: ignore[attr-defined, no-any-return]
        if self._app is None:
            raise RuntimeError("FlaskJobs has no application: call init_app(app) first")
        return self._app

    @property
    def sessions(self) -> sessionmaker[Any]:
        """The factory of handlers' sessions, as `Worker` takes it."""
        if isinstance(self._db, sessionmaker):
            return self._db
        with self.app.app_context():
            return _AppSessions(self._db.session, self._db.engine)

    def worker(self, **options: Any) -> Worker:
        """Return a worker on the application's database, for tests and scripts; `options` are those of `Worker`."""
        sessions = self.sessions
        return Worker(self.jobs, sessions.kw["bind"], session_factory=sessions, **options)

    async def in_app_context(self, attempt: AttemptContext, proceed: Proceed) -> None:
        """Run an `attempt` in a new application context, by calling `proceed`. Middleware."""
        with self.app.app_context():
            await proceed()


class _AppSessions(sessionmaker[Any]):
    """Gives the session of the application context, so that `db.session` in a handler is the handler's session."""

    def __init__(self, scoped: scoped_session[Any], engine: Engine) -> None:
        super().__init__(engine, class_=scoped.session_factory.class_)
        self._scoped = scoped

    def __call__(self, **options: Any) -> Any:
        return self._scoped()


def _found() -> FlaskJobs:
    # Without a context: in a process that the command started, such as with --processes.
    app = current_app if has_app_context() else ScriptInfo(os.environ.get("FLASK_APP")).load_app()
    found: FlaskJobs = app.extensions[_EXTENSION]
    return found


current_jobs: FlaskJobs = LocalProxy(_found)  # type: ignore[assignment]
"""The `FlaskJobs` of the current application."""


def _commands() -> click.Group:
    path = f"{__name__}:current_jobs"

    @click.pass_context
    @with_appcontext
    def use_the_applications_database(context: click.Context) -> None:
        """Manage the job queue in the application's database."""
        info = context.find_object(ScriptInfo)
        if info is not None and info.app_import_path:
            os.environ["FLASK_APP"] = info.app_import_path
        url = current_jobs.sessions.kw["bind"].url
        # Not as arguments, which other users can see.
        os.environ["SA_JOBQUEUE_URL"] = url.render_as_string(hide_password=False)
        os.environ["SA_JOBQUEUE_APP"] = f"{path}.jobs"

    return LazyGroup(
        "jobs",
        callback=use_the_applications_database,
        help="Manage the job queue in the application's database.",
        context_settings={"default_map": {"worker": {"engine": f"{path}.sessions"}}},
    )

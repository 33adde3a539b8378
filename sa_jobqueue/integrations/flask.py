"""The queue in a Flask application: `flask jobs ...`, and handlers that run in the application's context.

    db = SQLAlchemy()
    jobs = JobQueue(Job)
    queue = FlaskJobs(jobs, db)

    def create_app() -> Flask:
        app = Flask(__name__)
        db.init_app(app)
        queue.init_app(app)
        return app

Handlers of a registry that `jobs` includes run in the context too.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Final, cast

import click
from flask import Flask, current_app, has_app_context
from flask.cli import ScriptInfo, with_appcontext
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from werkzeug.local import LocalProxy
from werkzeug.test import create_environ

from sa_jobqueue.cli import LazyGroup
from sa_jobqueue.cli._options import APPLICATION_IS_FIXED
from sa_jobqueue.errors import UncommittedWritesError
from sa_jobqueue.registry import JobQueue
from sa_jobqueue.worker import Worker

if TYPE_CHECKING:
    from flask.ctx import RequestContext
    from flask_sqlalchemy import SQLAlchemy
    from starlette.requests import Request

__all__ = ["FlaskJobs", "current_jobs"]

_EXTENSION: Final = "sa_jobqueue"


class FlaskJobs:
    """Connects a registry with a Flask application and its database.

    - Each attempt of the registry's handlers, and of those that it includes, runs in a new application context: in a
      worker, a child process, or `drain`.
    - With Flask-SQLAlchemy, the session that a handler asks for is `db.session`: functions that use it take part in the
      transaction that completes the job. They must not commit it.
    - A handler that takes no session commits `db.session` itself; if it leaves writes uncommitted, its attempt fails with
      `UncommittedWritesError`.
    - `flask jobs ...` has all commands of `sa-jobqueue`, for the application's database.

    `jobs`: the registry. `db`: Flask-SQLAlchemy's object, or a `scoped_session` or `sessionmaker` bound to an engine.
    `app`: the application; None to pass it to `init_app` later.
    """

    def __init__(
        self,
        jobs: JobQueue[Any],
        db: SQLAlchemy | scoped_session[Any] | sessionmaker[Any],
        app: Flask | None = None,
    ) -> None:
        self.jobs = jobs
        self._db = db
        self._app: Flask | None = None
        jobs.registry.surround(_InApp(self))
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
        """The current application, or the one that this was initialized with.

        Raises: RuntimeError without one.
        """
        if has_app_context() and current_app.extensions.get(_EXTENSION) is self:
            return current_app._get_current_object()  # type: ignore[attr-defined, no-any-return]
        if self._app is None:
            raise RuntimeError(
                "FlaskJobs has no application: call init_app(app) first; a child process of a worker loads the one that the "
                "environment variable FLASK_APP names"
            )
        return self._app

    @property
    def sessions(self) -> sessionmaker[Any]:
        """The factory of handlers' sessions, as `Worker` takes it."""
        if isinstance(self._db, sessionmaker):
            return self._db
        if isinstance(self._db, scoped_session):
            return self._db.session_factory
        with self.app.app_context():
            application_factory = cast("sessionmaker[Any]", self._db.session.session_factory)
            # A subclass of its class, so that listeners on `db.session` are called.
            return sessionmaker(**{**application_factory.kw, "bind": self._db.engine, "class_": application_factory.class_})

    def worker(self, **options: Any) -> Worker:
        """Return a worker on the application's database, for tests and scripts; `options` are those of `Worker`."""
        sessions = self.sessions
        return Worker(self.jobs, sessions.kw["bind"], session_factory=sessions, **options)

    def request_context(self, request: Request) -> RequestContext:
        """Return Flask's context of a request to the dashboard: `with queue.request_context(request):` in its `authorize`.

        Within it, Flask's `session`, and Flask-Login's `current_user`, are those of the browser that sent the request;
        changes of the session are not sent to it. `request`: that of the dashboard, a Starlette `Request`.
        """
        url = request.url
        environ = create_environ(
            url.path,
            f"{url.scheme}://{url.netloc}",
            query_string=url.query,
            method=request.method,
            headers=[(name, value) for name, value in request.headers.items() if name != "content-length"],
        )
        return self.app.request_context(environ)

    @property
    def scoped(self) -> scoped_session[Any] | None:
        """`db.session`; None with a `sessionmaker`, which has no current session."""
        if isinstance(self._db, sessionmaker):
            return None
        return self._db if isinstance(self._db, scoped_session) else cast("scoped_session[Any]", self._db.session)


class _InApp:
    """Puts the application's context around attempts, and makes a handler's session the current one while it is called."""

    def __init__(self, flask_jobs: FlaskJobs) -> None:
        self._flask_jobs = flask_jobs

    def around_attempt(self) -> AbstractContextManager[object]:
        if self._flask_jobs._app is None and (path := os.environ.get("FLASK_APP")):
            # In a child process, which has imported the handler's module; that need not create the application.
            ScriptInfo(path).load_app()
        return self._flask_jobs.app.app_context()

    @contextmanager
    def around_call(self, place: str, session: Any) -> Iterator[None]:
        scoped = self._flask_jobs.scoped
        if scoped is None:
            yield
            return
        registry = scoped.registry
        is_bound = isinstance(session, Session)
        if is_bound:
            registry.set(session)
        try:
            yield
            if not is_bound and registry.has() and _has_uncommitted_writes(registry()):
                raise UncommittedWritesError(place, "db.session")
        finally:
            if is_bound:
                registry.clear()  # it is the worker's, or the test's, which goes on with it
            else:
                scoped.remove()


def _has_uncommitted_writes(session: Session) -> bool:
    """Return whether closing a session would drop writes: objects that were not flushed, or a transaction that wrote."""
    if session.new or session.deleted or any(session.is_modified(changed) for changed in session.dirty):
        return True
    return session.in_transaction() and any(_has_written(connection) for connection in _connections(session))


def _connections(session: Session) -> list[Connection]:
    """Return the connections that a session's transaction has begun to use."""
    connections = [entry[0] for entry in cast("Any", session.get_transaction())._connections.values()]
    return list({id(connection): connection for connection in connections}.values())


def _has_written(connection: Connection) -> bool:
    if connection.dialect.name != "postgresql" or connection.closed or not connection.in_transaction():
        return False
    try:
        return connection.scalar(text("SELECT pg_current_xact_id_if_assigned()::text")) is not None
    except DBAPIError:
        return False  # the transaction has failed already, by an error that the handler was given


def _flask_jobs() -> FlaskJobs:
    # Without a context: in a process that the command started, such as with --processes.
    app = current_app if has_app_context() else ScriptInfo(os.environ.get("FLASK_APP")).load_app()
    flask_jobs: FlaskJobs = app.extensions[_EXTENSION]
    return flask_jobs


current_jobs: FlaskJobs = LocalProxy(_flask_jobs)  # type: ignore[assignment]
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
        context.meta[APPLICATION_IS_FIXED] = True

    return LazyGroup(
        "jobs",
        callback=use_the_applications_database,
        help="Manage the job queue in the application's database.",
        context_settings={"default_map": {"worker": {"engine": f"{path}.sessions"}}},
    )

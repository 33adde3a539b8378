"""The ASGI application: routes of screens and acts, errors as pages, and the guard around all of it."""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote, urlsplit

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncEngine
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from sa_jobqueue.dashboard.access import Access, Authorize
from sa_jobqueue.dashboard.acts import perform, read_form
from sa_jobqueue.dashboard.guard import FIELD, LOOPBACK, Guard
from sa_jobqueue.dashboard.parameters import MAX_TEXT, ParameterError, Params
from sa_jobqueue.dashboard.rendering import assets, render, short, version
from sa_jobqueue.dashboard.sampler import sentence
from sa_jobqueue.dashboard.screens import ACTS, SCREENS
from sa_jobqueue.dashboard.screens.base import Act, Context, Download, Screen
from sa_jobqueue.dashboard.sources import Source
from sa_jobqueue.errors import (
    DatabaseUnavailableError,
    InvalidOptionError,
    JobQueueError,
    NotFoundError,
    SchemaError,
)
from sa_jobqueue.models import Job, JobClass
from sa_jobqueue.registry.job_queue import JobQueue

_log = logging.getLogger("sa_jobqueue.dashboard")
_UNAVAILABLE: Final = (SchemaError, DatabaseUnavailableError)
VERSION: Final = "X-Dashboard-Version"
"""Header of every page and fragment: `version()`."""
_WEB: Final = re.compile(r"https?://[^\s\"'<>]+\Z")
_HASH: Final = re.compile(r"\.[0-9a-f]{16}\.")
_STEPS: Final = {"confirmed", "back", "expected", "after", "why"}
"""Fields of an act's form that are about this step, and not about the rows."""
_TITLES: Final = {
    400: "This request cannot be answered",
    401: "Not logged in",
    403: "Not allowed",
    404: "Not found",
    405: "Method not allowed",
    409: "Nothing was changed",
    500: "Internal error",
    503: "Not available",
}


def dashboard(
    engine: Engine | AsyncEngine | Sequence[Source],
    jobs: JobQueue[Any] | JobClass = Job,
    *,
    operator: Engine | AsyncEngine | None = None,
    authorize: Authorize | None = None,
    hosts: Sequence[str] = LOOPBACK,
    frame_ancestors: Sequence[str] = (),
    title: str = "Job queue",
    trace_url: str | None = None,
) -> ASGIApp:
    """Return the dashboard as an ASGI application; mount it under any prefix.

    `engine`: reads, in READ ONLY transactions; use the observer's role. Or a list of `Source`, one for each queue. `jobs`:
    the `JobQueue` or `Job` class.
    `operator`: an engine with the operator's role, for changes; without it the dashboard is read-only.
    `authorize`: returns the `Access` of a request's user. Without it, every page only explains how to set
    it.
    `hosts`: accepted names in the `Host` header, without ports; "*" for any, if a proxy checks them.
    `frame_ancestors`: origins whose pages may show the dashboard in a frame. `title`: shown on every page, such as the name
    of the environment.
    `trace_url`: "https://jaeger.example/trace/{trace_id}", optionally with `{span_id}`; pages of jobs then have links to
    it.
    """
    if isinstance(engine, Engine | AsyncEngine):
        sources = [Source(name="queue", engine=engine, jobs=jobs, operator=operator)]
    else:
        sources = list(engine)
        if not sources or not all(isinstance(source, Source) for source in sources):
            raise InvalidOptionError("engine", "must be an Engine, an AsyncEngine, or a list of Source")
        if operator is not None or jobs is not Job:
            raise InvalidOptionError("operator", "and `jobs` are set in each Source of a list")
    for name, value in (("hosts", hosts), ("frame_ancestors", frame_ancestors)):
        if isinstance(value, str):
            raise InvalidOptionError(name, f"must be a list, not one value: [{value!r}]")
    if len({source.name for source in sources}) < len(sources):
        raise InvalidOptionError("engine", "has two sources of one name")
    if trace_url is not None and not (_WEB.match(trace_url) and "{trace_id}" in trace_url):
        raise InvalidOptionError("trace_url", f"must be an http or https URL with {{trace_id}} in it, got {trace_url!r}")
    pages = _Pages({source.name: source for source in sources}, title, trace_url)
    return Guard(
        app=pages.application(),
        refused=pages.refused,
        authorize=authorize,
        hosts=hosts,
        frame_ancestors=frame_ancestors,
        public=frozenset({"/livez", "/readyz", *(f"/static/{name}" for name in assets().contents)}),
    )


@dataclass(frozen=True)
class _Pages:
    """The endpoints."""

    sources: dict[str, Source]
    title: str
    trace_url: str | None = None

    def application(self) -> Starlette:
        """Return the routes; nothing else is served."""
        routes = [
            Route("/", self._first, methods=["GET"]),
            # Not the pages: beside texts that a link chooses, their size would give away the token of their forms.
            Route("/static/{name}", self._static, methods=["GET"], middleware=[Middleware(GZipMiddleware)]),
            Route("/livez", self._liveness, methods=["GET"]),
            Route("/readyz", self._readiness, methods=["GET"]),
            *(Route(f"/{{source}}/{screen.name}", self._view(screen), methods=["GET"]) for screen in SCREENS),
            *(
                Route(f"/{{source}}/{name}", self._download(download), methods=["GET"])
                for screen in SCREENS
                for name, download in screen.downloads.items()
            ),
            Route("/{source}/measure", self._measure, methods=["POST"]),
            *(Route(f"/{{source}}/acts/{name}", self._act, methods=["POST"], name=name) for name in ACTS),
        ]
        errors = (HTTPException, ParameterError, JobQueueError, DBAPIError, PoolTimeoutError, Exception)
        return Starlette(routes=routes, exception_handlers=dict.fromkeys(errors, self._failed))

    async def refused(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request that the guard refuses."""
        request = Request(scope, receive)
        error: HTTPException = scope["state"]["refusal"]
        if error.status_code == 503:
            response: Response = HTMLResponse(render("closed.html", self._frame(request, "Not set up")), 503)
        else:
            response = await self._failed(request, error)
        await response(scope, receive, send)

    async def _first(self, request: Request) -> Response:
        access: Access = request.state.access
        names = [name for name in self.sources if access.may_open(name)]
        if not names:
            raise HTTPException(403, "You may not open any queue of this dashboard.")
        return RedirectResponse(f"{_root(request)}/{names[0]}/{SCREENS[0].name}", 303)

    async def _static(self, request: Request) -> Response:
        name = request.path_params["name"]
        file = assets().contents.get(name)
        current = assets().names.get(_HASH.sub(".", name)) if _HASH.search(name) else None
        if file is None and current is not None:
            # A page of the release before, or of the next one while several processes are replaced: it gets the file of
            # this one, and reloads itself at its next update.
            content, kind = assets().contents[current]
            return Response(content, media_type=kind, headers={"Cache-Control": "no-store"})
        if file is None:
            raise HTTPException(404, "There is no such file.")
        headers = {"Cache-Control": "public, max-age=31536000, immutable"}
        return Response(file[0], media_type=file[1], headers=headers)

    async def _liveness(self, request: Request) -> Response:
        return PlainTextResponse("ok")

    async def _readiness(self, request: Request) -> Response:
        """Ask every database; the answer names neither them nor the error."""
        for source in self.sources.values():
            if not await run_in_threadpool(source.is_ready):
                return PlainTextResponse("not ready", 503)
        return PlainTextResponse("ok")

    def _view(self, screen: Screen) -> Callable[[Request], Any]:
        async def view(request: Request) -> Response:
            context = self._context(request, request.query_params.multi_items())
            is_fragment = "hx-request" in request.headers
            html = await run_in_threadpool(self._render, request, context, screen, is_fragment)
            etag = f'"{hashlib.sha256(html.encode()).hexdigest()[:32]}"'
            # A page of another release reloads itself: its fragments and files may have changed.
            headers = {"Vary": "HX-Request, Cookie", VERSION: version()}
            if is_fragment:
                # Kept by the browser, which asks each time whether it has changed.
                headers |= {"ETag": etag, "Cache-Control": "private, no-cache"}
                if etag in request.headers.get("if-none-match", ""):
                    return Response(status_code=304, headers=headers)
            return HTMLResponse(html, headers=headers)

        view.__name__ = screen.name
        return view

    def _download(self, download: Callable[[Context], Download]) -> Callable[[Request], Any]:
        async def save(request: Request) -> Response:
            attachment = await run_in_threadpool(download, self._context(request, request.query_params.multi_items()))
            headers = {"Content-Disposition": f'attachment; filename="{attachment.name}"'}
            return Response(attachment.content.encode(), media_type="application/octet-stream", headers=headers)

        return save

    def _render(self, request: Request, context: Context, screen: Screen, is_fragment: bool) -> str:
        screen_variables = screen.view(context)  # first: the frame has the time of the database's last answer
        variables = self._frame(request, screen.title, context, screen) | screen_variables
        template = f"{screen.name}.html"
        if is_fragment:
            return render("base.html", variables, block="title") + render(template, variables, block="live")
        return render(template, variables)

    async def _measure(self, request: Request) -> Response:
        """Return to the page, which measures a new report."""
        await read_form(request)
        context = self._context(request, [])
        context.source.measure_again()
        return RedirectResponse(context.url(SCREENS[0].name), 303)

    async def _act(self, request: Request) -> Response:
        fields = await read_form(request)
        context = self._context(request, [], form=fields)
        act = ACTS[request.url.path.rpartition("/")[2]]
        changes = await run_in_threadpool(perform, act, context)
        back = _back(request, context)
        if act.deletes_from and not context.is_preview and changes.count:
            listed = context.url(act.deletes_from)
            page = urlsplit(back)
            back = back if page.path == listed and "name=" not in page.query else listed
        form_values = {name: values for name, values in context.params.as_dict().items() if name not in _STEPS}
        if not context.is_preview and changes.after is not None:
            form_values["after"] = [str(changes.after)]
        undo = act.name.replace("pause-", "resume-") if act.name.startswith("pause-") and not context.is_preview else ""
        variables = self._frame(request, _named(act, form_values), context) | {
            "act": act,
            "undo": undo if undo and changes.count and context.may(ACTS[undo].permission) else "",
            "undone": form_values | {"name": [str(name) for name in changes.ids], "back": [back]},
            "changes": changes,
            "is_preview": context.is_preview,
            "what": form_values | {"back": [back], "expected": [str(changes.count)] if context.is_preview else []},
            "back": back,
        }
        return HTMLResponse(await run_in_threadpool(render, "act.html", variables))

    def _context(self, request: Request, query: list[tuple[str, str]], form: list[tuple[str, str]] | None = None) -> Context:
        access: Access = request.state.access
        source = self.sources.get(request.path_params["source"])
        # The same answer for a queue that does not exist and one that the user may not open.
        if source is None or not access.may_open(source.name):
            raise HTTPException(404, "There is no such queue in this dashboard.")
        params = Params(query) if form is None else Params.of_form(form)
        return Context(source=source, access=access, params=params, root=_root(request), trace_url=self.trace_url)

    def _frame(
        self, request: Request, heading: str, context: Context | None = None, screen: Screen | None = None
    ) -> dict[str, Any]:
        """Return the variables of `base.html`."""
        access: Access | None = getattr(request.state, "access", None)
        root = _root(request)
        sources = [name for name in self.sources if access and access.may_open(name)]
        path_source = request.scope.get("path_params", {}).get("source")
        return {
            "title": self.title,
            "heading": heading,
            "static": {file: f"{root}/static/{name}" for file, name in assets().names.items()},
            "home": f"{root}/",
            "context": context,
            "alerts": context.alerts if context else {},
            "url": context.url if context else None,
            "screen": screen,
            "screens": [listed for listed in SCREENS if listed.part_of is None],
            "sources": sources,
            "source_name": path_source if path_source in sources else None,
            "root": root,
            "access": access,
            "here": quote(request.scope["path"]) + (f"?{request.url.query}" if request.url.query else ""),
            "rendered_at": context.source.now() if context else datetime.now(UTC),
            "version": version(),
            "frame": {
                "acts": f"{root}/{context.source.name}/acts" if context else "",
                "field": FIELD,
                "token": getattr(request.state, "form_token", ""),
            },
        }

    async def _failed(self, request: Request, error: Exception) -> Response:
        """Return an error as a page with one sentence; statements, parameters and tracebacks are never shown."""
        headers: dict[str, str] = {}
        match error:
            case HTTPException():
                status, reason, headers = error.status_code, error.detail, dict(error.headers or {})
            case ParameterError():
                status, reason = 400, str(error)
            case NotFoundError():
                status, reason = 404, str(error)
            case JobQueueError() if isinstance(error, _UNAVAILABLE):
                status, reason = 503, sentence(error)
            case JobQueueError() if request.method == "POST":
                status, reason = 409, str(error)
            case JobQueueError():
                status, reason = 400, str(error)
            case DBAPIError() | PoolTimeoutError():
                status, reason = 503, f"The database did not answer: {sentence(error)}"
            case _:
                _log.error("page failed", exc_info=error)
                status, reason = 500, "The server's log has the details."
        if status < 400:
            return Response(status_code=status, headers=headers)
        if "hx-request" in request.headers:
            return PlainTextResponse(reason, status, headers=headers)
        heading = _TITLES.get(status, "This request cannot be answered")
        variables = self._frame(request, heading) | {"reason": reason, "status": status}
        return HTMLResponse(render("error.html", variables), status, headers=headers)


def _named(act: Act, form_values: dict[str, list[str]]) -> str:
    """Return the title of an act with the rows that it is about: `Redrive: move_stock`."""
    field = next((name for name in ("name", "type", "queue", "job", "id") if form_values.get(name)), "")
    names = form_values.get(field, [])
    listed = [*(short(name) if field in {"job", "id"} else name for name in names[:3]), *form_values.get("fairness_key", [])]
    more = f" and {len(names) - 3:,} more" if len(names) > 3 else ""
    return f"{act.title}: {', '.join(listed)}{more}" if listed else act.title


def _root(request: Request) -> str:
    return quote(str(request.scope.get("root_path", "")).rstrip("/"))


def _back(request: Request, context: Context) -> str:
    """Return the page that the form was sent from, if it is one of this dashboard."""
    prefix = f"{context.root}/{context.source.name}/"
    sent_from = urlsplit(request.headers.get("referer", ""))
    page = sent_from.path + (f"?{sent_from.query}" if sent_from.query else "")
    if "/acts/" in page or len(page) > MAX_TEXT:
        page = context.params.text("back") or ""
    return page if page.startswith(prefix) else context.url(SCREENS[0].name)

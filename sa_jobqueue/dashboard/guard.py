"""Checks of each request (host, method, origin and credentials) and headers of each response."""

from __future__ import annotations

import hmac
import inspect
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, unquote, urlsplit

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sa_jobqueue.dashboard.access import Access, Authorize
from sa_jobqueue.errors import InvalidOptionError

LOOPBACK: Final = ("localhost", "127.0.0.1", "[::1]")
COOKIE: Final = "sa_jobqueue_form"
"""Holds the token that forms repeat. Each browser has one; the server keeps none."""
FIELD: Final = "csrf_token"
_HOST: Final = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:\d{1,5})?", re.IGNORECASE)
_ORIGIN: Final = re.compile(r"https?://[A-Za-z0-9.:\[\]-]+")
_TOKEN: Final = re.compile(r"[A-Za-z0-9_-]{43}")


@dataclass(kw_only=True, eq=False)
class Guard:
    """Middleware around the whole dashboard.

    Sets `request.state.access` and `request.state.form_token`. Requests to `public` paths, compared whole, pass without
    credentials. `refused` makes the response to a refused request.
    """

    app: ASGIApp
    refused: ASGIApp
    authorize: Authorize | None
    hosts: Sequence[str]
    frame_ancestors: Sequence[str]
    public: frozenset[str]

    def __post_init__(self) -> None:
        self._hosts = {host.lower() for host in self.hosts}
        self._headers = security_headers(self.frame_ancestors)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
            return
        scope = mounted(scope)
        state = scope.setdefault("state", {})
        request = Request(scope, receive)
        token = request.cookies.get(COOKIE, "")
        is_new = not _TOKEN.fullmatch(token)
        state["form_token"] = secrets.token_urlsafe(32) if is_new else token

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in self._headers.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
                if is_new and state.get("access") is not None:
                    headers.append("Set-Cookie", _cookie(request, state["form_token"]))
            await send(message)

        try:
            state["access"] = None
            if scope["path"].removeprefix(scope.get("root_path", "")) not in self.public:
                self._check(request)
                state["access"] = await self._access(request)
        except HTTPException as error:
            state["refusal"] = error
            await self.refused(scope, receive, sending)
            return
        await self.app(scope, receive, sending)

    def _check(self, request: Request) -> None:
        host = request.headers.get("host", "")
        match = _HOST.fullmatch(host)
        if "*" not in self._hosts and (match is None or match[1].lower() not in self._hosts):
            raise HTTPException(400, "This host name is not among the `hosts` of the dashboard.")
        if request.method not in {"GET", "HEAD", "POST"}:
            raise HTTPException(405, "Only GET, HEAD and POST are accepted.", headers={"Allow": "GET, HEAD, POST"})
        if request.method == "POST" and not is_same_origin(request.headers):
            raise HTTPException(
                403, "The form was not sent by a page of this dashboard: its origin is another one, or missing."
            )

    async def _access(self, request: Request) -> Access:
        if self.authorize is None:
            raise HTTPException(503, "not set up")
        if inspect.iscoroutinefunction(self.authorize):
            access = await self.authorize(request)
        else:
            access = await run_in_threadpool(self.authorize, request)
            if inspect.isawaitable(access):
                access = await access
        if access is None:
            raise HTTPException(401, "Log in to see this page.")
        if not isinstance(access, Access):
            raise InvalidOptionError("authorize", f"must return an Access or None, got a {type(access).__name__}")
        return access


def mounted(scope: Scope) -> Scope:
    """Return a scope with the prefix in `root_path` and at the start of `path`, as the ASGI specification has it.

    Litestar takes the prefix from the path, adds a slash to its end, and leaves `root_path` empty.
    """
    path = scope["path"].rstrip("/")
    raw = unquote(scope.get("raw_path", b"").decode("latin-1").partition("?")[0]).rstrip("/")
    if scope.get("root_path") or raw == path or not raw.endswith(path):
        return scope
    return {**scope, "root_path": raw[: len(raw) - len(path)], "path": raw if path else f"{raw}/"}


def is_same_origin(headers: Headers) -> bool:
    """Return whether a page of the same origin sent a request; without evidence it did not."""
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    origin = headers.get("origin", "")
    return urlsplit(origin).netloc.lower() == headers.get("host", "").lower() if _ORIGIN.fullmatch(origin) else False


def check_token(request: Request, form_token: str | None) -> None:
    """Check that a form repeats the token of the browser's cookie. Raises: HTTPException."""
    expected = request.cookies.get(COOKIE, "")
    if not _TOKEN.fullmatch(expected) or not hmac.compare_digest(expected.encode(), (form_token or "").encode()):
        raise HTTPException(403, "The form has expired or belongs to another browser. Open the page again, then repeat it.")


def security_headers(frame_ancestors: Sequence[str] = ()) -> dict[str, str]:
    """Return the headers of every response. Raises: InvalidOptionError for an origin that is not one."""
    for origin in frame_ancestors:
        if origin != "'self'" and not _ORIGIN.fullmatch(origin):
            raise InvalidOptionError("frame_ancestors", f"must be origins such as https://intranet.example, got {origin!r}")
    directives = ("script-src", "style-src", "img-src", "connect-src", "form-action")
    policy = ["default-src 'none'", *(f"{name} 'self'" for name in directives), "base-uri 'none'"]
    policy.append(f"frame-ancestors {' '.join(frame_ancestors) or chr(39) + 'none' + chr(39)}")
    return {
        "Content-Security-Policy": "; ".join(policy),
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
        # Not no-referrer: with it browsers send forms with `Origin: null`.
        "Referrer-Policy": "same-origin",
        "X-Content-Type-Options": "nosniff",
        "X-Robots-Tag": "noindex",
    }


def _cookie(request: Request, token: str) -> str:
    path = quote(request.scope.get("root_path", "")) or "/"
    secure = "; Secure" if request.url.scheme == "https" else ""
    return f"{COOKIE}={token}; Path={path}; HttpOnly; SameSite=Strict{secure}"

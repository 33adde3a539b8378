"""Access by a token that works once, for a dashboard that one person starts on a machine."""

from __future__ import annotations

import hmac
import secrets
import threading
from http.cookies import SimpleCookie
from urllib.parse import parse_qsl, quote, urlencode

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from sa_jobqueue.dashboard.access import Access

COOKIE = "sa_jobqueue_session"
PARAMETER = "token"
_REFUSED = (
    "Open the link that the command printed. It works in the browser that opened it first: to use another one, end the "
    "command and start it again."
)


class OneTimeToken:
    """Lets in the first browser that opens a URL with the token, and keeps it by a cookie until the process ends.

    `authorize` is for `dashboard`; `wrap` is put around it. `access`: what that browser may do.
    """

    def __init__(self, access: Access) -> None:
        self.token = secrets.token_urlsafe(32)
        self._access = access
        self._session = secrets.token_urlsafe(32)
        self._lock = threading.Lock()
        self._is_used = False

    def authorize(self, request: Request) -> Access:
        """Return the access of a browser with the cookie. Raises: HTTPException."""
        cookie = request.cookies.get(COOKIE, "")
        if hmac.compare_digest(cookie.encode(), self._session.encode()):
            return self._access
        raise HTTPException(401, _REFUSED)

    def wrap(self, app: ASGIApp) -> ASGIApp:
        """Return an application that exchanges the token for the cookie, and leaves it out of the URL then."""

        async def exchanging(scope: Scope, receive: Receive, send: Send) -> None:
            fields = parse_qsl(scope.get("query_string", b"").decode("latin-1")) if scope["type"] == "http" else []
            tokens = [value for name, value in fields if name == PARAMETER]
            if not tokens or scope["method"] != "GET" or not self._exchange(tokens[0], scope):
                await app(scope, receive, send)
                return
            query = urlencode([field for field in fields if field[0] != PARAMETER])
            # One slash and quoted: a path such as `//host/` would be the URL of another site.
            path = quote("/" + scope["path"].lstrip("/\\"))
            response = RedirectResponse(f"{path}{'?' + query if query else ''}", 303)
            # Lax: the link may be opened from another program, which a strict cookie would not survive.
            response.set_cookie(COOKIE, self._session, httponly=True, samesite="lax", path="/")
            response.headers["Cache-Control"] = "no-store"
            await response(scope, receive, send)

        return exchanging

    def _exchange(self, token: str, scope: Scope) -> bool:
        if not hmac.compare_digest(token.encode(), self.token.encode()):
            return False
        cookie = SimpleCookie(Headers(scope=scope).get("cookie", "")).get(COOKIE)
        if cookie is not None and hmac.compare_digest(cookie.value.encode(), self._session.encode()):
            return True  # the same browser follows the link again
        with self._lock:
            is_first, self._is_used = not self._is_used, True
        return is_first

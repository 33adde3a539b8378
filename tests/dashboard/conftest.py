"""A dashboard on the test's database, and clients for it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from httpx import ASGITransport, AsyncClient, Cookies, Response
from sqlalchemy import Engine
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Mount

from sa_jobqueue.dashboard import ALL_PERMISSIONS, Access, dashboard
from sa_jobqueue.dashboard.guard import COOKIE

HOST = "http://localhost"
PREFIX = "/admin/jobs"


def everyone(request: Request) -> Access:
    return Access(user="ann", permissions=ALL_PERMISSIONS, payload_types=["*"])


class Client:
    """A browser without scripts: keeps cookies, sends forms as a page of the dashboard does."""

    def __init__(self, app: Any, *, prefix: str = PREFIX) -> None:
        self.app = Starlette(routes=[Mount(prefix, app=app)]) if prefix else app
        self.prefix = prefix
        self.cookies = Cookies()

    def request(self, method: str, path: str, **options: Any) -> Response:
        async def send() -> Response:
            transport = ASGITransport(self.app, raise_app_exceptions=False)
            async with AsyncClient(transport=transport, base_url=HOST, cookies=self.cookies) as http:
                response = await http.request(method, f"{self.prefix}{path}", **options)
                self.cookies.update(http.cookies)
                return response

        return asyncio.run(send())

    def get(self, path: str, **options: Any) -> Response:
        return self.request("GET", path, **options)

    def page(self, path: str, **options: Any) -> str:
        response = self.get(path, **options)
        assert response.status_code == 200, response.text
        return response.text

    def token(self) -> str:
        if COOKIE not in self.cookies:
            self.page("/queue/jobs")
        return str(self.cookies[COOKIE])

    def post(self, act: str, arguments: Any = None, *, headers: dict[str, str] | None = None, **fields: Any) -> Response:
        form_fields = {"csrf_token": self.token(), **fields}
        if arguments is not None:
            form_fields["what"] = json.dumps(arguments)
        sent = {"Sec-Fetch-Site": "same-origin"} | (headers or {})
        return self.request("POST", f"/queue/acts/{act}", data=form_fields, headers=sent)


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let pages wait for a report, so that none is measured when a test ends."""
    monkeypatch.setattr("sa_jobqueue.dashboard.sampler.PATIENCE", 60.0)


@pytest.fixture
def client(engine: Engine) -> Client:
    """Give a client of a dashboard whose user may do everything."""
    return Client(dashboard(engine, operator=engine, authorize=everyone))

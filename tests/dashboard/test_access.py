"""Every route refuses a stranger, every act a user without its permission, and every form of another origin."""

from __future__ import annotations

import html
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import pytest
from sqlalchemy import Engine, create_engine
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.routing import Route

from sa_jobqueue import JobStatus
from sa_jobqueue.dashboard import ALL_PERMISSIONS, Access, Permission, Source, dashboard
from sa_jobqueue.dashboard.app import _Pages
from sa_jobqueue.dashboard.rendering import assets
from sa_jobqueue.dashboard.screens import ACTS, SCREENS
from sa_jobqueue.dashboard.tokens import OneTimeToken
from sa_jobqueue.errors import InvalidOptionError
from tests.dashboard.conftest import PREFIX, Client, everyone
from tests.fixtures.jobs import Jobs

UNREACHABLE = create_engine("postgresql+psycopg://nobody@127.0.0.1:1/none")
"""An engine that fails the test which connects with it."""


def routes() -> Iterator[tuple[str, str, bool]]:
    """Yield method, path and whether it is public, of every route that the application has."""
    app: Starlette = _Pages({"queue": Source(name="queue", engine=UNREACHABLE)}, "").application()
    for route in app.routes:
        assert isinstance(route, Route)  # no mount, no websocket, no pattern
        for method in route.methods or ():
            path = route.path.replace("{source}", "queue")
            if path == "/static/{name}":
                yield from ((method, f"/static/{name}", True) for name in assets().contents)
                path = path.replace("{name}", "other.js")
            yield method, path, path in {"/livez", "/readyz"}


def test_routes_are_exactly_the_screens_and_actions() -> None:
    protected = {(method, path) for method, path, is_public in routes() if not is_public and method != "HEAD"}
    pages = {("GET", f"/queue/{screen.name}") for screen in SCREENS}
    pages |= {("GET", f"/queue/{name}") for screen in SCREENS for name in screen.downloads}
    acts = {("POST", f"/queue/acts/{name}") for name in ACTS}
    assert protected == pages | acts | {("GET", "/"), ("GET", "/static/other.js"), ("POST", "/queue/measure")}


@pytest.mark.parametrize(("authorize", "status"), [(None, 503), (lambda request: None, 401)], ids=["not set", "refuses"])
def test_every_route_is_refused_without_credentials(authorize: Any, status: int) -> None:
    client = Client(dashboard(UNREACHABLE, operator=UNREACHABLE, authorize=authorize))
    same = {"Sec-Fetch-Site": "same-origin", "Content-Type": "application/x-www-form-urlencoded"}
    for method, path, is_public in routes():
        response = client.request(method, path, headers=same)
        expected = 503 if path == "/readyz" else 200 if is_public else status
        assert response.status_code == expected, (method, path)
        assert "default-src 'none'" in response.headers["content-security-policy"], path
        if not is_public:
            assert "set-cookie" not in response.headers
    for path in (
        "/static/../queue/jobs",
        "//queue/jobs",
        "/static/",
        "/queue/jobs/static/",
        "/queue/unknown",
        "/other/jobs",
    ):
        assert client.get(path).status_code == status, path
    assert "authorize" in client.get("/").text or status == 401


@pytest.mark.parametrize("name", ACTS)
def test_every_action_needs_exactly_its_permission(name: str) -> None:
    act = ACTS[name]
    access = Access(user="eve", permissions=ALL_PERMISSIONS - {act.permission})
    client = Client(dashboard(UNREACHABLE, operator=UNREACHABLE, authorize=lambda request: access))
    client.cookies.set("sa_jobqueue_form", "a" * 43, domain="localhost.local")
    headers = {"Sec-Fetch-Site": "same-origin"}
    form_fields = {"csrf_token": "a" * 43, "confirmed": "1"}
    response = client.request("POST", f"/queue/acts/{name}", data=form_fields, headers=headers)
    assert response.status_code == 403
    assert f"permission {act.permission}" in response.text


def test_each_permission_belongs_to_an_action() -> None:
    assert {act.permission for act in ACTS.values()} == set(Permission)


def test_a_read_only_dashboard_has_no_writable_connection(engine: Engine, jobs: Jobs) -> None:
    job_id = jobs.add()
    client = Client(dashboard(engine, authorize=everyone))
    page = client.page("/queue/jobs")
    assert "read-only" in page
    assert "<button>Cancel" not in page
    for name in ACTS:
        response = client.post(name, {"id": str(job_id)}, confirmed="1")
        assert response.status_code == 403
        assert "read-only" in response.text
    source = Source(name="queue", engine=engine)
    with pytest.raises(InvalidOptionError, match="read-only"), source.write():
        pass
    with source.read() as session:
        assert session.connection().exec_driver_sql("SHOW transaction_read_only").scalar_one() == "on"
        assert session.connection().exec_driver_sql("SHOW application_name").scalar_one() == "sa_jobqueue dashboard"


def test_a_cross_origin_form_is_refused(client: Client, jobs: Jobs) -> None:
    sent: list[tuple[dict[str, str], int]] = [
        ({"Sec-Fetch-Site": "same-origin"}, 200),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "none"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Origin": "http://localhost"}, 403),
        ({"Origin": "http://localhost"}, 200),
        ({"Origin": "http://localhost:81"}, 403),
        ({"Origin": "http://localhost.evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({}, 403),
    ]
    for headers, status in sent:
        job_id = jobs.add()
        form_fields = {"csrf_token": client.token(), "what": f'{{"id": "{job_id}"}}', "confirmed": "1"}
        response = client.request("POST", "/queue/acts/cancel-jobs", data=form_fields, headers=headers)
        assert (response.status_code, headers) == (status, headers)
        assert jobs.status(job_id) is (JobStatus.CANCELLED if status == 200 else JobStatus.PENDING)


def test_a_form_requires_post_and_the_csrf_token_of_its_browser(client: Client, jobs: Jobs) -> None:
    job_id = jobs.add()
    arguments = {"id": str(job_id)}
    other_client = Client(client.app, prefix="")
    other_client.prefix = PREFIX
    for token in ("", "a" * 43, other_client.token()):
        response = client.post("cancel-jobs", arguments, confirmed="1", csrf_token=token)
        assert response.status_code == 403, token
    for method in ("GET", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
        response = client.request(method, f"/queue/acts/cancel-jobs?confirmed=1&id={job_id}")
        assert response.status_code == 405, method
    client.cookies.clear()
    headers = {"Sec-Fetch-Site": "same-origin"}
    form_fields = {"csrf_token": "", "what": f'{{"id": "{job_id}"}}', "confirmed": "1"}
    assert client.request("POST", "/queue/acts/cancel-jobs", data=form_fields, headers=headers).status_code == 403
    assert jobs.status(job_id) is JobStatus.PENDING


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "", "localhost@evil.example", "127.0.0.1.nip.io"]
)
def test_an_unknown_host_is_refused(host: str) -> None:
    client = Client(dashboard(UNREACHABLE, authorize=everyone))
    response = client.get("/", headers={"Host": host})
    assert response.status_code == 400
    assert "hosts" in response.text


def test_allowed_hosts_are_accepted() -> None:
    for hosts, host in ((["jobs.example"], "JOBS.example:8443"), (["*"], "anything"), (["[::1]"], "[::1]:80")):
        client = Client(dashboard(UNREACHABLE, authorize=everyone, hosts=hosts))
        assert client.get("/", headers={"Host": host}).status_code == 303


def test_every_response_has_the_security_headers(client: Client) -> None:
    for path in ("/queue/jobs", "/nowhere", "/queue/acts/cancel-jobs"):
        headers = client.get(path).headers
        policy = headers["content-security-policy"]
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
    framed = Client(dashboard(UNREACHABLE, authorize=everyone, frame_ancestors=["https://intranet.example"]))
    assert framed.get("/").headers["content-security-policy"].endswith("frame-ancestors https://intranet.example")


def test_authorize_may_be_async_or_redirect_and_a_wrong_result_is_an_error(engine: Engine) -> None:
    async def slowly(request: Request) -> Access | None:
        return everyone(request)

    def to_login(request: Request) -> Access | None:
        raise HTTPException(303, headers={"Location": "/login"})

    assert Client(dashboard(engine, authorize=slowly)).get("/queue/jobs").status_code == 200
    response = Client(dashboard(engine, authorize=to_login)).get("/queue/jobs")
    assert (response.status_code, response.headers["location"]) == (303, "/login")
    wrong: Any = lambda request: True  # noqa: E731
    assert Client(dashboard(engine, authorize=wrong)).get("/queue/jobs").status_code == 500


def test_a_user_sees_only_granted_queues(engine: Engine) -> None:
    sources = [Source(name="mail", engine=engine), Source(name="secret", engine=UNREACHABLE)]
    access = Access(user="eve", sources=["mail"], permissions=ALL_PERMISSIONS)
    client = Client(dashboard(sources, authorize=lambda request: access))
    assert client.get("/").headers["location"] == f"{PREFIX}/mail/overview"
    assert "secret" not in client.page("/mail/jobs")
    assert client.get("/secret/jobs").status_code == 404
    nothing = Client(dashboard(sources, authorize=lambda request: replace(access, sources=[])))
    assert nothing.get("/").status_code == 403


def test_payloads_of_types_without_permission_are_redacted(engine: Engine, jobs: Jobs) -> None:
    error = {"type": "ValueError", "message": "card 4111 1111", "traceback": "card 4111 1111"}
    jobs.add(JobStatus.DEAD, type_name="pay", last_error=error, error=error, input={"card": "4111 1111"})
    access = Access(user="eve", payload_types=["mail*"])
    page = Client(dashboard(engine, authorize=lambda request: access)).page("/queue/jobs")
    assert "ValueError: (redacted)" in page
    assert "4111 1111" not in page
    assert "card 4111 1111" in Client(dashboard(engine, authorize=everyone)).page("/queue/jobs")


@pytest.mark.parametrize("variable", ["", "pay"])
def test_a_filter_by_input_tells_nothing_of_payloads_that_the_user_may_not_see(
    engine: Engine, jobs: Jobs, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SA_JOBQUEUE_REDACT", variable)
    jobs.add(type_name="pay", input={"cents": 63685})
    mail = jobs.add(type_name="mail", input={"cents": 63685})
    types = ["*"] if variable else ["mail"]
    access = Access(user="eve", permissions=ALL_PERMISSIONS, payload_types=types)
    client = Client(dashboard(engine, operator=engine, authorize=lambda request: access))
    for cents in (63685, -1):
        entered = quote(json.dumps({"cents": cents}))
        for query in ("", "&type=pay", "&type=pay&type=mail", "&search=type:pay", "&queue=default"):
            refused = client.get(f"/queue/jobs?input={entered}{query}")
            assert refused.status_code == 400
            assert "with job types whose payloads you may see" in html.unescape(refused.text)
        page = client.page(f"/queue/jobs?input={entered}&type=mail")
        assert (str(mail) in page) is (cents > 0)
        what = {"matching": ["1"], "input": [json.dumps({"cents": cents})]}
        assert client.post("cancel-jobs", what).status_code == 400
    monkeypatch.setenv("SA_JOBQUEUE_REDACT", "")
    everything = Client(dashboard(engine, authorize=everyone))
    assert str(mail) in everything.page(f"/queue/jobs?input={quote(json.dumps({'cents': 63685}))}")


def test_a_one_time_token_works_once_in_one_browser() -> None:
    tokens = OneTimeToken(Access(user="ann"))
    app = tokens.wrap(dashboard(UNREACHABLE, authorize=tokens.authorize))
    first, second = Client(app, prefix=""), Client(app, prefix="")
    assert first.get("/").status_code == 401
    assert first.get("/?token=wrong").status_code == 401
    entered = first.get(f"/?token={tokens.token}")
    assert entered.status_code == 303
    assert entered.headers["location"] == "/"
    assert "httponly" in entered.headers["set-cookie"].lower()
    assert first.get("/").headers["location"] == "/queue/overview"
    refused = second.get(f"/?token={tokens.token}")
    assert refused.status_code == 401
    assert "in the browser that opened it first" in refused.text
    assert first.get(f"/?token={tokens.token}").status_code == 303
    # Another site is not where a link of this one leads, and a wrong token exchanges nothing.
    for path in ("//evil.example/", "/\\evil.example/", "///evil.example"):
        location = first.get(f"http://localhost{path}?token={tokens.token}").headers["location"]
        assert not location.startswith(("//", "/\\"))
        assert "//" not in location
    assert first.get("/?token=wrong").headers["location"] == "/queue/overview"


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"user": ""}, "user"),
        ({"user": "a\nb"}, "user"),
        ({"user": "a", "permissions": ["everything"]}, "permissions"),
        ({"user": "a", "sources": "mail"}, "sources"),
    ],
)
def test_access_arguments_are_validated(options: Any, name: str) -> None:
    with pytest.raises(InvalidOptionError) as caught:
        Access(**options)
    assert caught.value.option == name


def test_dashboard_options_are_validated() -> None:
    source = Source(name="mail", engine=UNREACHABLE)
    wrong: list[dict[str, Any]] = [
        {"engine": []},
        {"engine": [source, source]},
        {"engine": [source], "operator": UNREACHABLE},
        {"engine": UNREACHABLE, "hosts": "example.com"},
        {"engine": UNREACHABLE, "frame_ancestors": ["https://a; script-src *"]},
        {"engine": UNREACHABLE, "jobs": object()},
    ]
    for options in wrong:
        with pytest.raises(InvalidOptionError):
            dashboard(**options)
    with pytest.raises(InvalidOptionError, match="name"):
        Source(name="../x", engine=UNREACHABLE)

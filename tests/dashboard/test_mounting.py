"""Under any prefix, behind proxies, several at once, with async engines, and with the least privileges."""

from __future__ import annotations

import re
from collections import defaultdict
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, NullPool, create_engine, event, func
from sqlalchemy.ext.asyncio import AsyncEngine
from starlette.applications import Starlette
from starlette.routing import Mount

from sa_jobqueue import Job, JobQueue, JobStatus
from sa_jobqueue.dashboard import Source, dashboard
from sa_jobqueue.dashboard.findings import link
from sa_jobqueue.dashboard.parameters import Params
from sa_jobqueue.dashboard.screens.base import Context
from sa_jobqueue.migrations.grants import apply_grants
from sa_jobqueue.observe.health import Code, Finding, Severity
from tests.dashboard.conftest import PREFIX, Client, everyone
from tests.dashboard.pages import confirmed
from tests.fixtures.database import own_database
from tests.fixtures.jobs import Jobs
from tests.fixtures.transactions import write


def links(page: str) -> set[str]:
    return set(re.findall(r'(?:href|src|action|hx-get)="(/[^"]*)"', page))


@pytest.mark.parametrize(
    "prefix",
    ["/a/b%20c/queue", *(pytest.param(prefix, marks=pytest.mark.long) for prefix in ("", "/jobs", "/static", "/queue"))],
)
def test_links_keep_the_mount_prefix(engine: Engine, prefix: str) -> None:
    app = dashboard(engine, operator=engine, authorize=everyone)
    client = Client(app, prefix=prefix.replace("%20", " ")) if prefix else Client(app, prefix="")
    client.prefix = prefix
    links_of_pages = set()
    for path in ("/queue/overview", "/queue/jobs"):
        on_page = links(client.page(path))
        assert len(on_page) > 10
        links_of_pages |= on_page
    assert all(link.startswith(f"{prefix}/") for link in links_of_pages), links_of_pages
    pages = sorted(link for link in links_of_pages if "/acts/" not in link and not link.endswith("/measure"))
    if prefix not in {"", "/a/b%20c/queue"}:  # these two follow every link, the others a file and some pages
        pages = [*pages[::8], next(page for page in pages if "/static/" in page)]
    for page in pages:
        assert client.get(page.removeprefix(prefix)).status_code in {200, 303}, page


@pytest.mark.parametrize("strips", [True, False])
def test_links_work_behind_a_proxy_that_strips_or_keeps_its_prefix(engine: Engine, strips: bool) -> None:
    app = dashboard(engine, operator=engine, authorize=everyone)

    async def proxied(scope: Any, receive: Any, send: Any) -> None:
        # As uvicorn --root-path does: the path has the prefix, whatever the proxy sent.
        path = scope["path"] if not strips else f"/proxy{scope['path']}"
        await app({**scope, "root_path": "/proxy", "path": path}, receive, send)

    client = Client(proxied, prefix="")
    page = client.page("/queue/jobs" if strips else "/proxy/queue/jobs")
    assert all(link.startswith("/proxy/") for link in links(page))


def test_several_dashboards_and_queues_run_in_one_process(engine: Engine, jobs: Jobs) -> None:
    jobs.add(type_name="mine")
    first = dashboard(engine, JobQueue(), authorize=everyone, title="one")
    two = dashboard([Source(name="a", engine=engine), Source(name="b", engine=engine, jobs=Job)], authorize=everyone)
    both = Starlette(routes=[Mount("/one", app=first), Mount("/two", app=two)])
    client = Client(both, prefix="")
    client.prefix = ""
    assert "mine" in client.page("/one/queue/jobs")
    page = client.page("/two/b/jobs")
    assert 'href="/two/a/overview"' in page
    assert client.get("/two/queue/jobs").status_code == 404


@pytest.mark.slow
def test_the_dashboard_can_be_mounted_in_litestar(engine: Engine, jobs: Jobs) -> None:
    from litestar import Litestar, asgi

    job_id = jobs.add()
    app = dashboard(engine, operator=engine, authorize=everyone)
    client = Client(Litestar([asgi("/in/litestar", is_mount=True, copy_scope=True)(app)]), prefix="")
    client.prefix = "/in/litestar"
    assert client.get("/").headers["location"] == "/in/litestar/queue/overview"
    links_of_page = sorted(links(client.page("/queue/jobs")))
    assert all(path.startswith("/in/litestar/") for path in links_of_page)
    for path in [path for path in links_of_page if "/acts/" not in path][::4]:
        assert client.get(path.removeprefix("/in/litestar")).status_code in {200, 303}, path
    confirmed(client, client.post("cancel-jobs", {"id": str(job_id)}).text)
    assert jobs.status(job_id) is JobStatus.CANCELLED


def test_the_dashboard_accepts_an_async_engine(async_engine: AsyncEngine, jobs: Jobs) -> None:
    job_id = jobs.add()
    source = Source(name="queue", engine=async_engine, operator=async_engine)
    client = Client(dashboard([source], authorize=everyone))
    assert str(job_id) in client.page("/queue/jobs")
    confirmed(client, client.post("cancel-jobs", {"id": str(job_id)}).text)
    assert jobs.status(job_id) is JobStatus.CANCELLED
    source.dispose()


def test_the_dashboard_works_with_observer_and_operator_roles(engine: Engine, jobs: Jobs) -> None:
    with engine.begin() as connection:
        apply_grants(connection, Job.__jobqueue__)

    def as_role(role: str) -> Engine:
        role_engine = create_engine(engine.url, poolclass=NullPool)

        @event.listens_for(role_engine, "connect")
        def become(connection: Any, record: Any) -> None:
            connection.execute(f"SET ROLE {role}")
            connection.commit()

        return role_engine

    jobs.add_worker(heartbeat_at=func.now() + timedelta(minutes=5))  # alive however long the pages take
    reader, writer = as_role("jobqueue_observer"), as_role("jobqueue_operator")
    job_id = jobs.add()
    dead = jobs.add(JobStatus.DEAD, fingerprint="f", input={})
    client = Client(dashboard(reader, operator=writer, authorize=everyone))
    for path in ("overview", "jobs", f"job?id={dead}", "dead-letters", "queues", "job-types"):
        assert "could not be measured" not in client.page(f"/queue/{path}")
    for act, arguments in (
        ("set-priority", {"id": str(job_id), "priority": "3"}),
        ("cancel-jobs", {"id": str(job_id)}),
        ("dismiss-dead-letters", {"job": str(dead)}),
        ("redrive-dead-letters", {"job": str(dead), "resolved": "any"}),
        ("pause-queues", {"name": "default"}),
        ("resume-queues", {"name": "default"}),
        ("pause-job-types", {"name": "test"}),
        ("resume-job-types", {"name": "test"}),
    ):
        assert "<strong>1</strong>" in confirmed(client, client.post(act, arguments).text), act
    # A writer without rights is refused by the database, as one sentence.
    response = Client(dashboard(reader, operator=reader, authorize=everyone)).post(
        "pause-queues", {"name": "default"}, confirmed="1"
    )
    assert response.status_code == 503
    assert "permission denied" in response.text
    assert "INSERT" not in response.text
    reader.dispose()
    writer.dispose()


def test_liveness_runs_no_query_and_readiness_checks_the_database(engine: Engine) -> None:
    statements: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda *arguments: statements.append(arguments[2]))
    client = Client(dashboard(engine, authorize=lambda request: None))
    elsewhere = {"Host": "10.0.0.7:8000"}  # a probe knows no name
    assert client.get("/livez", headers=elsewhere).text == "ok"
    assert not statements
    assert client.get("/readyz", headers=elsewhere).text == "ok"
    statement_count = len(statements)
    assert statement_count
    client.get("/readyz")
    assert len(statements) == statement_count
    write(engine, "ALTER TABLE job RENAME TO elsewhere")
    response = Client(dashboard(engine, authorize=None)).get("/readyz")
    assert (response.status_code, response.text) == (503, "not ready")


def test_every_health_finding_links_to_an_existing_page(client: Client, engine: Engine, jobs: Jobs) -> None:
    job_id = jobs.add()
    source = Source(name="queue", engine=engine)
    context = Context(source=source, access=everyone(None), params=Params([]), root=PREFIX)  # type: ignore[arg-type]
    evidence: dict[str, Any] = {"queue": "default", "queues": ["default"], "type_name": "test", "name": "job"}
    evidence |= {"job_id": job_id, "chain_id": job_id}
    anchors: dict[str, set[str]] = defaultdict(set)
    for code in Code:
        finding = Finding(code=code, severity=Severity.OK, cause="", advice="", evidence=evidence)
        path, _, anchor = link(context, finding).removeprefix(PREFIX).partition("#")
        anchors[path].add(anchor)
    for path, of_page in anchors.items():
        page = client.page(path)
        assert [anchor for anchor in of_page - {""} if f'id="{anchor}"' not in page] == [], path


@own_database
def test_tables_that_were_migrated_meanwhile_are_an_error_without_a_failing_statement(
    client: Client, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sa_jobqueue.dashboard.sampler.AT_LEAST", timedelta(0))
    monkeypatch.setattr("sa_jobqueue.dashboard.sampler.SHARE", 0)
    client.page("/queue/overview")
    write(engine, "COMMENT ON TABLE job IS 'sa_jobqueue version=9'")
    page_text = client.get("/queue/overview").text
    assert "table job is of version 9, this library knows up to 1" in page_text

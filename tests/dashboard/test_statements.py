"""What screens state besides their rows: how far a list searched, what differs, who serves what, what ends a cause."""

from __future__ import annotations

import html
import re
from datetime import timedelta
from functools import partial

import pytest
from sqlalchemy import Engine, func
from sqlalchemy.orm import Session

from sa_jobqueue import JobStatus, Schedule
from sa_jobqueue.dashboard import Access, Source, dashboard
from sa_jobqueue.dashboard.findings import acts, link
from sa_jobqueue.dashboard.parameters import Params
from sa_jobqueue.dashboard.rendering import environment
from sa_jobqueue.dashboard.screens.base import Context
from sa_jobqueue.dashboard.screens.job import _remedy
from sa_jobqueue.observe.health import Code, Finding, Severity
from sa_jobqueue.operations import list_jobs, pause_queues, upsert_schedule
from sa_jobqueue.operations.explaining import Cause, Explanation
from tests.dashboard.conftest import PREFIX, Client, everyone
from tests.dashboard.pages import words
from tests.fixtures.jobs import WORKER, Jobs
from tests.fixtures.transactions import call, write

WITHOUT_LINK = {
    Cause.SLEEPING,
    *(Cause.COMPLETED, Cause.CANCELLED, Cause.RUNNING, Cause.EXPIRED, Cause.SCHEDULED, Cause.RETRYING),  # acts of the page
    *(Cause.BLOCKED, Cause.UNBLOCKING),  # its root causes stand first, with their links
    *(Cause.QUARANTINED, Cause.STATUS_UNKNOWN, Cause.NOT_MEASURED, Cause.ROWS_HIDDEN),
}


def test_a_list_that_reached_its_scan_limit_shows_how_far_it_searched(
    client: Client, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = "sa_jobqueue.dashboard.screens.jobs"
    monkeypatch.setattr(f"{screen}.SEARCH_SECONDS", 0)
    monkeypatch.setattr(f"{screen}.list_jobs", partial(list_jobs, scan_limit=4))
    rare = str(jobs.add(type_name="rare", input={"a": 1}))
    jobs.add_many(6, type_name="rare")
    page = client.page('/queue/jobs?input={"a": 1}')
    searched = r"Not all jobs were searched: only to those enqueued at \d{4}-.* UTC\. Search on"
    assert re.search(searched, words(page)), words(page)
    assert "No job matches among those searched so far." in words(page)
    (following,) = re.findall(r'href="[^"]*?(/queue/jobs[^"]*)">Search on', page)
    page = client.page(html.unescape(following))
    assert rare in page
    assert "No job matches" not in page


def test_workers_show_versions_handlers_and_unserved_queues(engine: Engine, jobs: Jobs) -> None:
    jobs.add_worker(WORKER, queues=["mail", "pay"], job_types=["send", "charge"], version="1.0", concurrency=9)
    page = Client(dashboard(engine, authorize=everyone)).page("/queue/workers")
    assert "several versions" not in page
    assert "No worker serves" not in page
    jobs.add(queue="orphan")
    jobs.add_worker("other:2", queues=["mail"], job_types=["send"], version="2.0")
    client = Client(dashboard(engine, operator=engine, authorize=everyone))
    page = client.page("/queue/workers")
    assert "No worker serves orphan." in words(page)
    assert "Workers of several versions run: 1.0, 2.0." in words(page)
    (row,) = re.findall(rf"(?s)<tr[^>]*><th[^>]*><a[^>]*>{WORKER}</a>.*?</tr>", page)
    assert "0/9" in words(f"<h1>{row}")
    assert re.findall(r"/queue\?name=(\w+)", row) == ["mail", "pay"]
    assert re.findall(r"/job-type\?name=(\w+)", row) == ["send", "charge"]
    jobs.add_worker("third:3", queues=["orphan"], job_types=["send"])
    assert "No worker serves" not in client.page("/queue/workers")  # beside the row of a worker that does
    due, later = (jobs.add(queue="mail", due_in=seconds) for seconds in (-5, 500))
    assert ["acts/trigger-jobs" in client.page(f"/queue/job?id={job_id}") for job_id in (due, later)] == [False, True]


def test_each_explanation_links_to_its_remedy(client: Client, engine: Engine, jobs: Jobs) -> None:
    pending, dead = jobs.add(), jobs.add(JobStatus.DEAD)
    source = Source(name="queue", engine=engine)
    context = Context(source=source, access=everyone(None), params=Params([]), root=PREFIX)  # type: ignore[arg-type]
    pages: dict[str, str] = {}
    for cause in Cause:
        job_id = dead if cause is Cause.DEAD else pending
        explanation = Explanation(
            job_id=job_id,
            type_name="test",
            queue="default",
            fairness_key="",
            status=JobStatus.PENDING,
            cause=cause,
            sentence="",
            evidence={"waits_for": job_id, "event": "approved:7"},
        )
        url, label = _remedy(context, explanation)
        assert (url is None) == (label is None) == (cause in WITHOUT_LINK), cause
        if url is not None:
            path, _, anchor = url.removeprefix(PREFIX).partition("#")
            page = pages[path] = pages.get(path) or client.page(path)
            assert not anchor or f'id="{anchor}"' in page, cause


def test_a_late_schedule_shows_its_delay(client: Client, engine: Engine, session: Session) -> None:
    upsert_schedule(session, Schedule(name="hourly", type_name="report", cron="0 * * * *"))
    session.commit()
    page = words(client.page("/queue/schedules"))
    assert "waiting" in page
    assert not re.search(r"\blate \d", page)
    write(engine, "UPDATE schedule SET next_fire_at = now() - interval '2 hours'")
    page = words(client.page("/queue/schedules"))
    assert re.search(r"\blate (2|2\.0) ?h", page), page


def test_each_slow_disaster_links_to_its_page(client: Client, engine: Engine, jobs: Jobs) -> None:
    job = jobs.add(type_name="crawl")
    source = Source(name="queue", engine=engine)
    context = Context(source=source, access=everyone(None), params=Params([]), root=PREFIX)  # type: ignore[arg-type]
    evidence = {"type_name": "crawl", "chain_id": job, "job_id": job}
    for code in (Code.GROWING, Code.LONG_CHAIN, Code.WORKERS_RESTARTING, Code.DECLARED_DIFFERENTLY, Code.CLOCK):
        finding = Finding(code=code, severity=Severity.WARNING, cause="", advice="", evidence=evidence)
        url = link(context, finding)
        assert "storage" not in url
        client.page(url.removeprefix(PREFIX).partition("#")[0])


def test_the_causes_of_real_findings_come_first(client: Client, engine: Engine, jobs: Jobs) -> None:
    due = func.now() - timedelta(minutes=3)
    jobs.add_worker(queues=["default", "mail"], job_types=["other"])
    jobs.add_many(2, type_name="fax", scheduled_at=due)
    jobs.add(queue="orphan", scheduled_at=due)
    jobs.add(JobStatus.DEAD, type_name="pay", error={"type": "ValueError", "message": "no"}, fingerprint="a")
    call(engine, pause_queues, ["mail"], by="bob")
    page = client.page("/queue/overview")
    causes = re.findall('class="summary"><strong>([^<]*)</strong>', html.unescape(page))
    assert "No live worker serves 'orphan', where jobs are due" in causes
    assert "Jobs of pay died: ValueError: no" in causes
    assert "The only worker of 'default' has no handler for 'fax'" in causes
    # The command is read without scripts, and copied with them.
    assert re.search(
        "<code>sa-jobqueue queues resume mail</code> <button [^>]*data-copy=.sa-jobqueue queues resume mail.", page
    )


@pytest.mark.parametrize(
    ("advice", "command"),
    [
        ("Resume it: sa-jobqueue queues resume mail.", "sa-jobqueue queues resume mail"),
        ("See sa-jobqueue explain 7.", "sa-jobqueue explain 7"),
        ("To end it: SELECT pg_terminate_backend(7)", "SELECT pg_terminate_backend(7)"),
        ("If that is not meant: sa-jobqueue types pause fax, and see what enqueues them.", ""),
        ("They try again. sa-jobqueue doctor checks privileges and tables.", ""),
        ("Add workers.", ""),
    ],
)
def test_an_advice_is_divided_from_the_command_that_it_ends_with(advice: str, command: str) -> None:
    prose, found_command = environment().filters["command"](advice)
    assert found_command == command
    assert advice.startswith(prose)


def test_a_runaway_type_is_paused_and_an_endless_chain_cancelled_from_their_findings(engine: Engine, jobs: Jobs) -> None:
    jobs.add_worker(job_types=["crawl"])
    job_id = jobs.add(type_name="crawl")
    client = Client(dashboard(engine, operator=engine, authorize=everyone))
    source = Source(name="queue", engine=engine, operator=engine)
    context = Context(source=source, access=everyone(None), params=Params([]), root=PREFIX)  # type: ignore[arg-type]
    evidence = {"type_name": "crawl", "chain_id": job_id}
    findings = [
        Finding(code=code, severity=Severity.WARNING, cause="", advice="", evidence=evidence)
        for code in (Code.GROWING, Code.LONG_CHAIN)
    ]
    ends = [act for finding in findings for act in acts(context, finding)]
    assert [(name, title) for name, title, _ in ends] == [("pause-job-types", "Pause"), ("cancel-chains", "Cancel")]
    for name, _, arguments in ends:
        assert "<strong>1</strong>" in client.post(name, arguments, confirmed="1").text
    assert jobs.status(job_id) is JobStatus.CANCELLED
    reader = Context(source=source, access=Access(user="eve"), params=Params([]), root=PREFIX)
    assert [act for finding in findings for act in acts(reader, finding)] == []

"""Every screen in a real browser: it keeps its policy, axe-core finds nothing, it fits a telephone, updates keep state."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from jinja2 import ChoiceLoader, FileSystemLoader, PackageLoader
from sqlalchemy import Engine, create_engine, insert
from sqlalchemy.orm import Session
from starlette.applications import Starlette
from starlette.routing import Mount

from sa_jobqueue import Job, JobStatus, Schedule
from sa_jobqueue.cli.dashboard import served
from sa_jobqueue.dashboard import Source, dashboard
from sa_jobqueue.dashboard.charts import Mark, Span, bar
from sa_jobqueue.dashboard.rendering import environment
from sa_jobqueue.dashboard.screens import SCREENS
from sa_jobqueue.dashboard.screens.activity import charts
from sa_jobqueue.dashboard.screens.base import Context, Screen
from sa_jobqueue.dashboard.trees import Branch, Node
from sa_jobqueue.observe.health import Code, Finding, Severity, health
from sa_jobqueue.observe.minutes import Figures
from sa_jobqueue.operations import list_audit, sync_schedules, upsert_job_type, upsert_queue
from sa_jobqueue.registry.settings import Limits, settings_of
from sa_jobqueue.settings import QueueSettings, TypeSettings
from tests.dashboard.chromium import AXE, CHECK, CHROMIUM, RULES, SKIPPED
from tests.dashboard.conftest import PREFIX, everyone
from tests.dashboard.links import links
from tests.fixtures.hostile import HostileJob, write_hostile
from tests.fixtures.jobs import Jobs
from tests.fixtures.minutes import record
from tests.fixtures.transactions import call

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

WIDE = """[...document.querySelectorAll("body *")].filter((one) =>
    one.checkVisibility() && one.getBoundingClientRect().right > innerWidth + 1
    && !one.closest(".scroll, pre, .skip, svg, nav.pages")).map((one) => one.outerHTML.slice(0, 90))"""
SMALL = """[...document.querySelectorAll("button, .button, select, input:not([type=hidden]), nav a")].filter((one) => {
    const box = one.getBoundingClientRect();
    return box.width > 0 && (box.width < 24 || box.height < 24);
}).map((one) => one.outerHTML.slice(0, 90))"""

COVERED = """() => [...document.querySelectorAll('[name="ids"]')].filter((box) => {
  const area = box.getBoundingClientRect(), text = document.createRange();
  return [...box.closest("tr").children].some((cell) => {
    text.selectNodeContents(cell);
    return !cell.contains(box) && [...text.getClientRects()].some((rect) => rect.width && rect.left < area.right
      && rect.right > area.left && rect.top < area.bottom && rect.bottom > area.top);
  });
}).map((box) => `the checkbox of ${box.value} covers text`)"""
SIDEWAYS = """[...document.querySelectorAll(".scroll")].filter((one) =>
    one.scrollWidth > one.clientWidth + 1).map((one) => `${one.getAttribute("aria-label")} scrolls sideways`)"""
COLUMNS = """[...document.querySelectorAll("thead")].filter((one) => one.rows[0].cells.length > 8).map(
    (one) => `${one.textContent}: ${one.rows[0].cells.length} columns`)"""
COMPONENTS = Path(__file__).parent / "components.html"
ZONE = "America/Argentina/ComodRivadavia"
LINES = """(() => {
    const light = (colour) => colour.match(/[0-9.]+/g).slice(0, 3).map(Number).map((one) => one / 255).map(
        (one) => one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4).reduce(
        (sum, one, at) => sum + one * [0.2126, 0.7152, 0.0722][at], 0);
    const page = light(getComputedStyle(document.body).backgroundColor);
    return [...document.querySelectorAll(".charts .key")].map((key) => {
        const line = light(getComputedStyle(key).color);
        const contrast = (Math.max(line, page) + 0.05) / (Math.min(line, page) + 0.05);
        return {contrast, sign: getComputedStyle(key, "::before").content};
    });
})()"""
MOVING = """[...document.querySelectorAll("*")].filter((one) => {
    const style = getComputedStyle(one);
    return [style.transitionDuration, style.animationDuration].some((time) => parseFloat(time) > 0);
}).map((one) => one.outerHTML.slice(0, 90))"""
FOCUSED = """(() => {
    const one = document.activeElement;
    if (one === document.body) return null;
    const box = one.getBoundingClientRect(), style = getComputedStyle(one);
    const within = box.bottom > 0 && box.top < innerHeight && box.right > 0 && box.left < innerWidth;
    const seen = within && style.outlineStyle !== "none";
    return {name: `${one.tagName}: ${(one.textContent || one.name || "").trim().slice(0, 20)}`, seen};
})()"""
FOCUSABLE = """[...document.querySelectorAll("a[href], button, summary, input, select, textarea, [tabindex='0']")].filter(
    (one) => one.type !== "hidden" && (one.checkVisibility() || one.className === "skip")).map(
    (one) => `${one.tagName}: ${(one.textContent || one.name || "").trim().slice(0, 20)}`)"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        if os.environ.get("CI"):
            pytest.fail(SKIPPED)
        pytest.skip(SKIPPED)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


class Opened:
    """A page in the browser, with its log and the hosts that it asked."""

    def __init__(self, browser: Browser, **context: Any) -> None:
        self.logged: list[str] = []
        self.requests: list[Any] = []
        self.context = browser.new_context(**context)
        self.page: Page = self.context.new_page()
        self.page.on("console", lambda message: self.logged.append(message.text))
        self.page.on("pageerror", lambda error: self.logged.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request))  # noqa: PLW0108 - it wants a function

    def check(self, rules: list[str] | None = None) -> list[str]:
        """Return what axe-core finds. It is evaluated by the browser's own protocol, which the page's policy allows."""
        if not AXE.exists():
            pytest.skip("axe-core is not in the sdist: scripts/vendor fetches it")
        self.page.evaluate(AXE.read_text(encoding="utf-8"))
        found: list[str] = self.page.evaluate(CHECK, rules or RULES)
        return found

    def check_small(self, place: str, *, only_dark: bool = False) -> dict[str, list[str]]:
        """Return the faults of the page on a telephone, in both themes, which differ in their contrast alone."""
        wrong = {} if only_dark else {f"{place} light": self.check()}
        self.page.emulate_media(color_scheme="dark")
        wrong[f"{place} dark"] = self.check(None if only_dark else ["color-contrast"])
        self.page.emulate_media(color_scheme="light")
        return wrong | {f"{place} wide": self.page.evaluate(WIDE), f"{place} small": self.page.evaluate(SMALL)}


def write_settings(engine: Engine) -> None:
    """Write a schedule, limits with and without a state, chains that wait for others, and records of the audit."""
    minute = timedelta(minutes=1)
    with Session(engine) as session, session.begin():
        sync_schedules(session, [Schedule(name="nightly", type_name="test", cron="0 3 * * *", time_zone="Europe/Berlin")])
        upsert_queue(session, QueueSettings(name="default", rate_limit=5, rate_period=minute, weight=3), by="ann")
        upsert_job_type(session, TypeSettings(type_name="test", global_concurrency=2), by="ann")
        first, second = Job(type_name="first"), Job(type_name="second")
        session.add_all([first, second, Job(type_name="last", blockers=[first, second])])


def fill(engine: Engine) -> dict[str, str]:
    """Write jobs in every state; return ids and names, as `write_hostile` does."""
    jobs = Jobs(engine)
    jobs.add_worker()
    error = {"type": "ValueError", "message": "no such order", "traceback": "Traceback\n  line"}
    for status in JobStatus:
        jobs.add(status, last_error=error if status is JobStatus.DEAD else None, input={"order_id": 7})
    attempted = jobs.add()
    attempt = {"job_id": attempted, "attempt": 1, "outcome": "failed", "error": error, "worker_id": "tester:1"}
    with engine.begin() as connection:
        connection.execute(insert(jobs.model.Attempt.__table__).values(attempt))
        waits = {"kind": "wait", "event": "approved:7", "deadline": datetime.now(UTC) + timedelta(days=1)}
        waits |= {"name": "approval", "attempt": 1, "started_at": datetime.now(UTC)}
        connection.execute(insert(jobs.model.Step.__table__).values(job_id=attempted, **waits))
    write_settings(engine)
    ids = {status.value: str(job_id) for job_id, status in jobs.statuses().items()}
    return ids | {
        "attempted": str(attempted),
        "queue": "default",
        "type": "test",
        "fingerprint": "",
        "schedule": "nightly",
        "event": "approved:7",
    }


@pytest.mark.long
def test_every_screen_is_accessible_and_obeys_the_content_security_policy(browser: Browser, engine: Engine) -> None:
    full = fill(engine)
    hostile = write_hostile(engine)
    sources = [Source(name=name, engine=engine, operator=engine, jobs=model) for name, model in _models()]
    app = Starlette(routes=[Mount(PREFIX, app=dashboard(sources, authorize=everyone))])
    opened = Opened(browser, viewport={"width": 320, "height": 900})
    wrong: dict[str, Any] = {}
    with served(app) as url:
        paths = [("full", path) for found in links(full).values() for path in found]
        paths += [("hostile", path) for found in links(hostile).values() for path in found]
        for source, path in paths:
            opened.page.goto(f"{url}{PREFIX}/{source}/{path}")
            # A screen's elements are the same with any texts.
            wrong |= opened.check_small(f"{source} {path}", only_dark=source == "hostile")
            assert opened.page.evaluate("document.documentElement.scrollWidth") <= 320, path
            assert opened.page.title().endswith("Job queue"), path
        # A script that got in all the same would not run, and the test would see it.
        assert not opened.logged
        opened.page.evaluate(
            "document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.ran = 1'}))"
        )
        assert opened.page.evaluate("window.ran") is None
        assert len(opened.logged) == 1
        assert {request.url.startswith(url) for request in opened.requests} == {True}
        opened.context.close()
    assert not {place: found for place, found in wrong.items() if found}


@pytest.mark.parametrize("width", [1280, 390])
def test_an_act_is_previewed_done_and_undone_over_its_page(browser: Browser, engine: Engine, width: int) -> None:
    Jobs(engine).add_worker(queues=["mail"])
    opened = Opened(browser, viewport={"width": width, "height": 800})
    page = opened.page
    with served(dashboard(engine, operator=engine, authorize=everyone)) as url:
        page.goto(f"{url}/queue/queue?name=mail")
        page.get_by_role("button", name="Pause").first.click()
        dialog = page.get_by_role("dialog", name="Pause queues: mail")
        dialog.get_by_label("Reason").fill("the provider is down")
        assert opened.check() == []
        assert page.evaluate(WIDE) == []
        dialog.get_by_role("button", name="Pause queues: 1").click()
        dialog.get_by_role("button", name="Undo").click()
        page.get_by_role("dialog", name="Resume queues: mail").wait_for()
        assert "1 resumed." in page.inner_text("#act")
        with page.expect_navigation():
            page.keyboard.press("Escape")
        assert page.url == f"{url}/queue/queue?name=mail"
        assert not opened.logged
        opened.context.close()
    resumed, paused = call(engine, list_audit)
    assert (paused.operation, paused.arguments["reason"]) == ("pause_queues", "the provider is down")
    assert (resumed.operation, "reason" in resumed.arguments) == ("resume_queues", False)


def test_the_palette_opens_what_is_typed(browser: Browser, engine: Engine) -> None:
    Jobs(engine).add_worker(queues=["mail"], job_types=["send_mail"])
    opened = Opened(browser, viewport={"width": 1280, "height": 800})
    page = opened.page
    with served(dashboard(engine, authorize=everyone)) as url:
        page.goto(f"{url}/queue/jobs")
        page.keyboard.press("Control+k")
        page.keyboard.type("send")
        page.locator("#results a", has_text="send_mail").first.wait_for()
        assert opened.check() == []
        page.keyboard.press("Enter")
        page.wait_for_url("**/queue/job-type?name=send_mail")
        page.keyboard.press("Control+k")
        page.keyboard.press("Escape")
        assert not page.locator("#palette").is_visible()
        assert not opened.logged
        opened.context.close()


def test_a_job_of_a_list_is_shown_beside_it_and_acted_upon_there(browser: Browser, engine: Engine) -> None:
    jobs = Jobs(engine)
    job_id, other_id = jobs.add(type_name="send_mail"), jobs.add(type_name="send_fax")
    opened = Opened(browser, viewport={"width": 1280, "height": 800})
    page = opened.page
    with served(dashboard(engine, operator=engine, authorize=everyone)) as url:
        page.goto(f"{url}/queue/jobs")
        for shown_id in (job_id, other_id):
            page.locator(f'tbody a.id[title="{shown_id}"]').click()
            page.locator("#panel-title", has_text=str(shown_id)).wait_for()
            assert page.locator("#panel .timeline").is_visible()
            assert opened.check() == []
        assert page.url.endswith("/queue/jobs")
        page.keyboard.press("Escape")
        assert not page.locator("#panel").is_visible()
        assert page.evaluate("document.activeElement.title") == str(other_id)
        page.keyboard.press("Enter")
        page.locator("#panel button", has_text="Cancel").click()
        page.locator("#act[open] button.danger, #act[open] form button").first.wait_for()
        page.keyboard.press("Escape")
        assert page.locator("#panel").is_visible()  # the act alone was left
        page.locator("#panel-title a").click()
        page.wait_for_url(f"**/queue/job?id={other_id}")
        assert not opened.logged
        page.set_viewport_size({"width": 390, "height": 844})
        page.goto(f"{url}/queue/jobs")
        page.locator(f'tbody a.id[title="{job_id}"]').click()
        page.wait_for_url(f"**/queue/job?id={job_id}")
        opened.context.close()


def test_a_telephone_shows_the_current_page_of_the_menu_findings_first_and_names_before_states(
    browser: Browser, engine: Engine
) -> None:
    fill(engine)
    source = Source(name="queue", engine=engine, operator=engine)
    opened = Opened(browser, viewport={"width": 390, "height": 844})
    page = opened.page
    with served(dashboard([source], authorize=everyone)) as url:
        source.sampler.sample()
        for screen in [screen for screen in SCREENS if screen.part_of is None]:
            page.goto(f"{url}/queue/{screen.name}")
            current = page.locator("nav.pages [aria-current]").bounding_box()
            assert current is not None
            assert 0 <= current["x"] <= 390 - current["width"], screen.name
            head = page.locator("header").bounding_box()
            assert head is not None
            assert head["height"] <= 120
        page.goto(f"{url}/queue/overview")
        tops = [page.locator(place).bounding_box() for place in ("#findings", ".age >> nth=0", "#figures")]
        assert [top["y"] for top in tops if top] == sorted(top["y"] for top in tops if top)
        for path, name, state in (
            ("workers", "tbody tr:first-child th a", "tbody tr:first-child .state"),
            ("jobs", "tbody tr:first-child [data-label=Type] a", "tbody tr:first-child .status"),
            ("schedules", "tbody tr:first-child th a", "tbody tr:first-child [data-label=State]"),
        ):
            page.goto(f"{url}/queue/{path}")
            boxes = [page.locator(place).first.bounding_box() for place in (name, state)]
            first, second = ((box["y"], box["x"]) for box in boxes if box)
            assert first < second, path
            assert page.locator("tbody tr:first-child .acts button, #selection button, tbody input").count() > 0
        opened.context.close()


@pytest.mark.long
def test_empty_and_failing_screens_are_accessible_too(browser: Browser, engine: Engine) -> None:
    down = create_engine("postgresql+psycopg://nobody@127.0.0.1:1/none", connect_args={"connect_timeout": 1})
    opened = Opened(browser, viewport={"width": 320, "height": 900})
    sources = [Source(name="empty", engine=engine), Source(name="down", engine=down)]
    wrong: dict[str, Any] = {}
    with served(dashboard(sources, authorize=everyone)) as url:
        for screen in SCREENS:
            if screen.part_of is not None:
                continue
            for source in ("empty", "down"):
                opened.page.goto(f"{url}/{source}/{screen.name}")
                wrong |= opened.check_small(f"{source} {screen.name}")
                assert (opened.page.get_by_role("alert").count() > 0) == (source == "down"), (source, screen.name)
        opened.context.close()
    down.dispose()
    assert not {place: found for place, found in wrong.items() if found}


@pytest.mark.long
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_charts_and_states_are_distinguishable_without_colour(browser: Browser, engine: Engine, scheme: str) -> None:
    """WCAG 2.2, 1.4.1 and 1.4.11: lines have a contrast of 3 and different dashes, states have words."""
    fill(engine)
    source = Source(name="queue", engine=engine)
    opened = Opened(browser, color_scheme=scheme)
    page = opened.page
    with served(dashboard([source], authorize=everyone)) as url:
        source.sampler.sample()
        record(engine)
        page.goto(f"{url}/queue/overview")
        page.locator("#chart-rates svg").wait_for()
        lines = page.evaluate(LINES)
        assert len(lines) >= 3
        assert [line for line in lines if line["contrast"] < 3] == []
        assert len({line["sign"] for line in lines[:3]}) == 3
        for screen in ("overview", "jobs", "queues", "workers"):
            page.goto(f"{url}/queue/{screen}")
            bare = ".status, .severity, .badge"
            assert page.evaluate(f"[...document.querySelectorAll('{bare}')].filter((one) => !one.innerText.trim())") == []
        opened.context.close()


def test_no_table_is_wider_than_its_page_and_none_has_more_than_eight_columns(browser: Browser, engine: Engine) -> None:
    """With names of a hundred characters, as long as they may be."""
    ids = fill(engine)
    name = ("tenant_imports.customer_relationship_management.synchronise_every_account_" * 2)[:100]
    jobs = Jobs(engine)
    jobs.add_many(3, type_name=name, queue=name, fairness_key=name)
    jobs.add(JobStatus.DEAD, type_name=name, queue=name, error={"type": "ValueError", "message": name}, fingerprint=name)
    jobs.add_worker(name, host=name, queues=[name] * 9, job_types=[name])
    with Session(engine) as session, session.begin():
        upsert_queue(session, QueueSettings(name=name, fairness_key=name, rate_limit=5, rate_period=timedelta(minutes=1)))
        upsert_job_type(session, TypeSettings(type_name=name, global_concurrency=2))
        sync_schedules(
            session, [Schedule(name=name, type_name=name, queue=name, cron="0,15,30,45 8-18 * * MON-FRI", time_zone=ZONE)]
        )
    opened = Opened(browser)
    wrong = {}
    with served(dashboard(engine, operator=engine, authorize=everyone)) as url:
        for path in [path for found in links(ids | {"queue": name, "type": name}).values() for path in found]:
            opened.page.goto(f"{url}/queue/{path}")
            for width in (1280, 390):
                opened.page.set_viewport_size({"width": width, "height": 900})
                found = [one for check in (SIDEWAYS, COLUMNS, COVERED) for one in opened.page.evaluate(check)]
                wrong[f"{path} {width}"] = found
        opened.context.close()
    assert not {path: found for path, found in wrong.items() if found}


def test_every_component_is_shown_in_its_states(
    browser: Browser, engine: Engine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A page that only tests serve; its pictures are in the directory of the test."""
    source = COMPONENTS.read_text(encoding="utf-8")
    macros = {name for name in vars(environment().globals["ui"]) if not name.startswith("_")}
    assert {name for name in macros if f"ui.{name}(" not in source} == set()
    package = PackageLoader("sa_jobqueue.dashboard")
    monkeypatch.setattr(environment(), "loader", ChoiceLoader([package, FileSystemLoader(COMPONENTS.parent)]))
    screen = Screen(name="components", title="Components", view=components, part_of="overview")
    monkeypatch.setattr("sa_jobqueue.dashboard.app.SCREENS", (*SCREENS, screen))
    wrong: dict[str, Any] = {}
    with served(dashboard(engine, operator=engine, authorize=everyone)) as url:
        for scheme in ("light", "dark"):
            opened = Opened(browser, color_scheme=scheme)
            opened.page.goto(f"{url}/queue/components")
            # Themes differ in their contrast alone.
            wrong[f"{scheme} axe"] = opened.check(["color-contrast"] if scheme == "dark" else None)
            opened.page.locator("tbody input").first.check()  # shows what can be done with the selected rows
            for width in (1440, 1280, 390):
                opened.page.set_viewport_size({"width": width, "height": 900})
                found = [one for check in (WIDE, SMALL, SIDEWAYS) for one in opened.page.evaluate(check)]
                wrong[f"{scheme} {width}"] = found
                opened.page.screenshot(path=tmp_path / f"{scheme}-{width}.png", full_page=True)
            wrong[f"{scheme} logged"] = opened.logged
            opened.context.close()
    assert not {place: found for place, found in wrong.items() if found}


def components(context: Context) -> dict[str, Any]:
    """Return values of every state."""
    now, minute = datetime.now(UTC), timedelta(minutes=1)
    limits = {"rate_limit": 5, "rate_period": minute, "rate_burst": 2}
    one = SimpleNamespace(paused_at=None, paused_by="bob", workers=1, used=3, concurrency=20, stuck_threads=0, **limits)
    key = {"queue": "mail", "due": 1234, "later": 0, "running": 3, "global_concurrency": 5, "oldest_at": now - minute}
    share = SimpleNamespace(received=0.1, due_share=0.8, is_starving=True)
    start = now.replace(second=0, microsecond=0) - 9 * minute
    minutes = [Figures(start + n * minute, 60, n, n, n, n, n, n, n, [n] * 16, [n] * 16) for n in range(10)]
    chain = Node(key="7", title="bind_book", status=JobStatus.BLOCKED, href="#", is_stuck=True)
    page = Node(key="8", title="scan_page", status=JobStatus.COMPLETED, href="#")
    pages = Branch(node=page, count=2, is_resolved=True, branches=[], left_out="shown above")
    return {
        "now": now,
        "statuses": list(JobStatus),
        "severities": list(Severity),
        "one": one,
        "paused": SimpleNamespace(**vars(one) | {"paused_at": now, "stuck_threads": 2}),
        "unserved": SimpleNamespace(**vars(one) | {"workers": 0, "rate_limit": None}),
        "keys": [
            (SimpleNamespace(fairness_key=name, paused_at=at, paused_by="bob", **limits, **key), share)
            for name, at in (("42", None), ("a-key-of-many-characters-" * 3, now))
        ],
        "waiting": SimpleNamespace(due=2, type_name="send_fax", queue="mail", job_id="7", waiting_for=minute),
        "runs": [SimpleNamespace(status=status, job_id="7", fire_time=now) for status in (*JobStatus, None)],
        "report": SimpleNamespace(missing=["queues"]),
        "minutes": minutes,
        "charts": charts(
            minutes, since=minutes[0].key, step=minute, jobs="#", marks=[Mark(now - 5 * minute, "mail paused by bob")]
        ),
        "bar": bar([Span("wait", "started", start, now), Span("run", "ended", now, now + minute)]),
        "error": {"type": "ValueError", "message": "no such order", "traceback": "Traceback\n  line 1"},
        "settings": settings_of(Limits),
        "tree": [Branch(node=chain, count=1, is_resolved=False, branches=[pages])],
    }


def _models() -> list[tuple[str, Any]]:
    return [("full", Job), ("hostile", HostileJob)]


def test_a_live_update_keeps_selection_and_focus_and_an_unchanged_one_returns_304(browser: Browser, engine: Engine) -> None:
    jobs = Jobs(engine)
    jobs.add()
    opened = Opened(browser)
    page = opened.page
    with served(dashboard(engine, operator=engine, authorize=everyone)) as url:
        page.goto(f"{url}/queue/jobs")
        page.locator("tbody tr").first.wait_for()
        jobs.add()
        page.evaluate("htmx.trigger('#live', 'refresh')")
        page.locator("tbody tr").nth(1).wait_for()
        with page.expect_response(lambda response: "jobs" in response.url) as response:
            page.evaluate("htmx.trigger('#live', 'refresh')")
        assert response.value.status in {200, 304}
        page.locator("tbody input").first.check()
        page.get_by_role("button", name="Cancel the selected").click()
        page.get_by_role("button", name="Cancel jobs: 1").click()
        page.locator("#act", has_text="1 cancelled.").wait_for()
        with page.expect_navigation():
            page.get_by_role("link", name="Back").click()
        assert page.url == f"{url}/queue/jobs"
        assert not opened.logged
        opened.context.close()
    assert sorted(jobs.statuses().values()) == sorted([JobStatus.CANCELLED, JobStatus.PENDING])


def test_live_updates_keep_selection_focus_and_scroll_on_their_row(browser: Browser, engine: Engine) -> None:
    jobs = Jobs(engine)
    ids = [str(one) for one in jobs.add_many(40)]
    opened = Opened(browser, viewport={"width": 1000, "height": 500})
    page = opened.page
    with served(dashboard(engine, operator=engine, authorize=everyone)) as url:
        page.goto(f"{url}/queue/jobs")
        page.get_by_label(f"Select {ids[30]}").check()
        page.locator(f"a[title='{ids[25]}']").focus()
        page.evaluate("scrollTo(0, 300)")
        added = str(jobs.add())
        page.keyboard.press("r")
        page.locator(f"a[title='{added}']").wait_for()
        assert page.evaluate("document.activeElement.title") == ids[25]
        assert page.evaluate("scrollY") == 300
        checked = page.evaluate("[...document.querySelectorAll('tbody input:checked')].map((one) => JSON.parse(one.value))")
        assert checked == [ids[30]]
        assert not opened.logged
        opened.context.close()


def test_live_updates_are_announced_at_most_every_ten_seconds(browser: Browser, engine: Engine) -> None:
    measured = health(engine)
    given = [measured]
    source = Source(name="queue", engine=engine)
    source.sampler.__init__(lambda: given[0])  # type: ignore[misc]
    opened = Opened(browser)
    page = opened.page
    page.add_init_script("{ const now = Date.now; window.later = 0; Date.now = () => now() + window.later; }")
    with served(dashboard([source], authorize=everyone)) as url:

        def update(findings: int) -> str:
            found = [
                Finding(code=Code.BLOAT, severity=Severity.WARNING, cause=str(number), advice="", evidence={})
                for number in range(findings)
            ]
            given[0] = replace(measured, findings=found)
            source.sampler._tried_at = float("-inf")
            page.evaluate("htmx.trigger('#live', 'refresh')")
            page.locator(f"[data-announce^='Health warning, {findings} ']").wait_for()
            return page.inner_text("#announced")

        page.goto(f"{url}/queue/overview")
        assert page.get_attribute("#announced", "aria-live") == "polite"
        assert update(1) == ""  # it is read with the page
        page.evaluate("window.later = 11_000")
        assert update(2) == "Health warning, 2 findings"
        assert update(3) == "Health warning, 2 findings"
        page.evaluate("window.later = 22_000")
        assert update(4) == "Health warning, 4 findings"
        assert update(5) == "Health warning, 4 findings"
        page.evaluate("window.later = 33_000")
        assert update(1) == "Health warning, 1 finding"
        assert not opened.logged
        opened.context.close()


def test_charts_times_keyboard_shortcuts_and_details_survive_updates(browser: Browser, engine: Engine) -> None:
    ids = fill(engine)
    opened = Opened(browser, timezone_id="Asia/Kolkata", locale="en-GB")
    page = opened.page
    source = Source(name="queue", engine=engine)
    with served(dashboard([source], authorize=everyone)) as url:
        source.sampler.sample()
        record(engine)
        page.goto(f"{url}/queue/overview")
        page.locator("#chart-rates svg").wait_for()
        page.keyboard.press("?")
        page.get_by_role("button", name="Close").click()
        page.keyboard.press("2")
        page.wait_for_url("**/queue/jobs")
        page.keyboard.press("/")
        assert page.evaluate("document.activeElement.name") == "search"
        page.get_by_text("Settings").click()
        page.get_by_label("Zone").select_option("local")
        page.goto(f"{url}/queue/job?id={ids['dead']}")
        at = page.locator("time").first
        assert "UTC" not in at.inner_text()
        assert " UTC\n" in (at.get_attribute("title") or "")
        page.goto(f"{url}/queue/job?id={ids['attempted']}")
        details = page.locator("#attempt-1")
        assert details.get_attribute("open") is not None
        details.locator("summary").click()
        attempts: Any = Job.Attempt.__table__
        with engine.begin() as connection:
            second = {"job_id": ids["attempted"], "attempt": 2, "outcome": "lost"}
            connection.execute(insert(attempts).values(second))
        page.keyboard.press("r")
        page.locator("#attempt-2").wait_for()
        assert details.get_attribute("open") is None
        assert page.evaluate("document.activeElement.tagName") == "SUMMARY"
        assert not opened.logged
        opened.context.close()


def test_times_match_the_database_in_any_time_zone_and_copies_are_exact(browser: Browser, engine: Engine) -> None:
    jobs = Jobs(engine)
    document = {"big": 2**80, "": {"": [None, {"a": None}]}, "nan": "NaN", "smile": "\U0001f600", "esc": "\x1b[0m\u202e\n"}
    # The hour that clocks in Berlin show twice.
    ids = [jobs.add(input=document, created_at=f"2025-10-26 {hour}:30:00+00", due_in=-7500) for hour in ("00", "01")]
    opened = Opened(browser, timezone_id="Asia/Kolkata", permissions=["clipboard-read", "clipboard-write"])
    page = opened.page
    page.add_init_script("{ const now = Date.now; Date.now = () => now() + 3_600_000; }")
    with served(dashboard(engine, authorize=everyone)) as url:
        page.goto(f"{url}/queue/job?id={ids[0]}")
        page.get_by_text("Settings").click()
        page.get_by_label("Zone").select_option("Europe/Berlin")
        shown = []
        for job_id in ids:
            page.goto(f"{url}/queue/job?id={job_id}")
            shown.append(page.locator("time").first.inner_text())
        assert [one[:19] for one in shown] == ["2025-10-26 02:30:00"] * 2
        assert shown[0] != shown[1]
        due = page.locator(".steps li", has_text="due").locator("time")
        page.get_by_text("Settings").click()
        page.get_by_label("Times").select_option("relative")
        assert due.inner_text() == "2 h ago"  # though the browser is an hour ahead
        lines = (due.get_attribute("title") or "").splitlines()
        assert len(lines) == 3
        assert lines[1].endswith("UTC")
        page.get_by_role("button", name="Copy the input").click()
        page.locator(".copy.done").wait_for()
        assert json.loads(page.evaluate("navigator.clipboard.readText()")) == document
        page.get_by_role("button", name="Copy the id").click()
        page.locator(".copy.done").nth(1).wait_for()
        assert page.evaluate("navigator.clipboard.readText()") == str(ids[1])
        assert not opened.logged
        opened.context.close()


def test_the_dashboard_works_by_keyboard_with_visible_focus_and_reduced_motion(browser: Browser, engine: Engine) -> None:
    jobs = Jobs(engine)
    jobs.add()
    # 1280 pixels at a zoom of 400 %.
    opened = Opened(browser, reduced_motion="reduce", viewport={"width": 320, "height": 256}, device_scale_factor=4)
    page = opened.page
    with served(dashboard(engine, operator=engine, authorize=everyone)) as url:
        page.goto(f"{url}/queue/jobs")
        page.locator("tbody tr").wait_for()
        assert page.evaluate("document.getAnimations().length") == 0
        assert page.evaluate(MOVING) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= 320
        reached: list[str] = []
        hidden: list[str] = []
        while len(reached) < 200:
            page.keyboard.press("Tab")
            place = page.evaluate(FOCUSED)
            if place is None:
                break
            reached.append(place["name"])
            if not place["seen"]:
                hidden.append(place["name"])
        assert hidden == []
        assert reached[0].startswith("A: Skip")
        every = page.evaluate(FOCUSABLE)
        assert len(reached) == len(every), set(every) ^ set(reached)
        page.locator("tbody input").focus()
        page.keyboard.press("Space")
        page.get_by_role("button", name="Cancel the selected").focus()
        page.keyboard.press("Enter")
        page.get_by_role("button", name="Cancel jobs: 1").focus()
        page.keyboard.press("Enter")
        page.get_by_text("cancelled.").wait_for()
        with page.expect_navigation():
            page.keyboard.press("Escape")
        page.keyboard.press("?")
        page.get_by_label("Use these keys").focus()
        page.keyboard.press("Space")
        page.keyboard.press("Escape")
        page.keyboard.press("?")
        assert not page.locator("#help").is_visible()
        opened.context.close()
    assert set(jobs.statuses().values()) == {JobStatus.CANCELLED}


def test_a_page_of_another_release_keeps_its_assets_and_reloads_once(
    browser: Browser, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Opened(browser)
    page = opened.page
    with served(dashboard(engine, authorize=everyone)) as url:
        page.goto(f"{url}/queue/jobs")
        style = page.locator('link[href*="dashboard."]').get_attribute("href") or ""
        old = page.request.get(url + style[:-20] + "0" * 16 + ".css")
        assert (old.status, old.headers["cache-control"]) == (200, "no-store")
        assert old.body() == page.request.get(url + style).body()
        monkeypatch.setattr("sa_jobqueue.dashboard.app.version", lambda: "next")
        with page.expect_navigation():
            page.evaluate("htmx.trigger('#live', 'refresh')")
        assert page.get_attribute("body", "data-version") == "next"
        # Another process still has the release before: no second reload.
        page.evaluate("document.body.dataset.version = 'before'")
        with page.expect_response(lambda response: "jobs" in response.url):
            page.evaluate("htmx.trigger('#live', 'refresh')")
        assert page.get_attribute("body", "data-version") == "before"
        opened.context.close()


def test_the_dashboard_works_without_javascript(browser: Browser, engine: Engine) -> None:
    jobs = Jobs(engine)
    jobs.add(type_name="mail")
    jobs.add(type_name="pay")
    opened = Opened(browser, java_script_enabled=False)
    page = opened.page
    with served(dashboard(engine, operator=engine, authorize=everyone)) as url:
        page.goto(url)
        assert "Findings" in page.inner_text("main")
        page.get_by_role("link", name="Jobs", exact=True).click()
        page.get_by_label("Search", exact=True).fill("pay")
        page.get_by_role("button", name="Search").click()
        assert page.locator("tbody tr").count() == 1
        page.locator("tbody input").check()
        page.get_by_role("button", name="Run the selected").click()
        page.get_by_role("button", name="Run jobs now: 1").click()
        assert "1 made due now." in page.inner_text("main")
        page.goto(f"{url}/queue/schedules")
        page.get_by_text("New schedule").click()
        page.get_by_label("Name", exact=True).fill("a b")
        page.get_by_label("Cron expression").fill("0 3 * * *")
        page.get_by_label("Job type", exact=True).fill("mail")
        page.get_by_role("button", name="Create").click()
        page.get_by_role("button", name="Set the schedule: 1").click()
        page.get_by_role("link", name="Back").click()
        page.get_by_role("link", name="a b").click()
        page.get_by_role("button", name="Delete…").click()
        page.get_by_role("button", name="Delete schedules: 1").click()
        page.get_by_role("link", name="Back").click()  # its own page is gone
        assert page.url == f"{url}/queue/schedules"
        assert "There are no schedules." in page.inner_text("main")
        assert not page.locator("#settings").is_visible()
        opened.context.close()

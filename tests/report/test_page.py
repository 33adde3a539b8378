"""The page in a real browser: it draws, it loads nothing, and the error of a job is text."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sa_jobqueue.pipeline.report import render
from sa_jobqueue.pipeline.report.charts import bars, charts, shown_seconds
from sa_jobqueue.pipeline.report.contents import Contents
from tests.fixtures.histories import AS_OF, HOSTILE, T0
from tests.report.contents import filled

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
SKIPPED = "there is no Chromium to open the page with: apt-get install chromium, or put a chrome on the path"


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
    """A page in the browser, and what happened while it was opened."""

    def __init__(self, browser: Browser, path: Path, **context: Any) -> None:
        self.messages: list[str] = []
        self.asked: list[str] = []
        self.page: Page = browser.new_page(**context)
        self.page.on("console", lambda message: self.messages.append(message.text))
        self.page.on("pageerror", lambda error: self.messages.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(path.as_uri())


@pytest.mark.parametrize("width", [1100, 390])
def test_a_browser_renders_the_report_without_requests_or_injected_code(
    browser: Browser, tmp_path: Path, width: int
) -> None:
    path = tmp_path / "report.html"
    path.write_text(render(filled()), encoding="utf-8")
    opened = Opened(browser, path, viewport={"width": width, "height": 800})
    page = opened.page
    charts = page.locator("svg.chart")
    assert charts.count() == 3
    for number in range(3):
        assert len(charts.nth(number).get_attribute("aria-label") or "") > 40
        box = charts.nth(number).locator("path").first.bounding_box()
        assert box
        assert box["height"] > 50
    wide = """width => [...document.querySelectorAll("main *, header *")].filter((one) =>
        one.getBoundingClientRect().right > width && !one.closest(".wide, svg")).map((one) => one.outerHTML.slice(0, 90))"""
    assert page.evaluate(wide, width) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width

    page.locator("#errors").scroll_into_view_if_needed()
    first = page.locator("section[aria-labelledby=errors] details").first
    first.locator("summary").click()
    assert first.locator("pre").inner_text() == f"Traceback\n  {HOSTILE}"
    assert page.locator("main img").count() == 0
    assert page.title().startswith("Job queue report")
    # A script that got in all the same would not run.
    page.evaluate("document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.ran = 1'}))")
    assert page.evaluate("window.ran") is None
    assert [text for text in opened.messages if "Content Security Policy" not in text] == []
    assert len(opened.messages) == 1  # of the script just tried
    assert opened.asked == [path.as_uri()]
    page.close()


def boxes(path: str) -> list[tuple[float, ...]]:
    """Return the bars of a path, each as left, top, width and height."""
    drawn = re.findall(r"M([\d.]+) ([\d.]+)v-([\d.]+)h([\d.]+)v[\d.]+z", path)
    return [(left, bottom - height, width, height) for left, bottom, height, width in (map(float, one) for one in drawn)]


def test_bars_are_stacked_at_their_times_and_as_wide_as_their_buckets() -> None:
    every = timedelta(minutes=1)
    row = {"bucket_start": T0, "completed": 3, "failed": 1}
    rows = [row, {"bucket_start": T0 + 3 * every, "completed": 0, "failed": 2}]
    paths = bars(rows, ("completed", "failed"), T0, T0 + 4 * every, every)
    assert boxes(paths["completed"]) == [(0, 25, 22.5, 75)]
    assert boxes(paths["failed"]) == [(0, 0, 22.5, 25), (75, 50, 22.5, 50)]
    busy = [row | {"type_name": name, "busy_workers": 0.5} for name in ("load", "check")]
    chart = charts(replace(filled(), busy=busy, capacity_every=every))["busy"]
    assert (chart.most, chart.at, chart.last - chart.first) == (1.0, T0, every)
    assert boxes(chart.paths["busy_workers"]) == [(0, 50, 90, 50), (0, 0, 90, 50)]
    assert charts(replace(filled(), throughput=[], busy=[])) == {}


def test_an_empty_history_renders_a_page_with_a_notice(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    nothing = Contents(sources=("/srv/archive",), generated_at=AS_OF, since=AS_OF, until=None, first=None, last=None)
    path.write_text(render(nothing), encoding="utf-8")
    opened = Opened(browser, path)
    assert "There is no history here" in opened.page.inner_text("main")
    assert "widen the time range" in opened.page.inner_text("main")
    assert (opened.messages, opened.asked) == ([], [path.as_uri()])
    assert path.stat().st_size < 20_000
    opened.page.close()


class Outline(HTMLParser):
    """What of a page a screen reader goes by."""

    def __init__(self) -> None:
        super().__init__()
        self.headings: list[int] = []
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.named: list[str] = []
        self.bare: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.tags.append(tag)
        if re.fullmatch("h[1-6]", tag):
            self.headings.append(int(tag[1]))
        if "id" in given:
            self.ids.append(str(given["id"]))
        for name in ("aria-labelledby", "href"):
            if name in given and str(given[name])[0] != "d":  # not data:
                self.named.append(str(given[name]).removeprefix("#"))
        if tag == "th" and "scope" not in given:
            self.bare.append("th")
        if given.get("role") == "img" and not given.get("aria-label"):
            self.bare.append("img")


def test_the_report_has_headings_captions_and_accessible_names() -> None:
    page = render(filled())
    outline = Outline()
    outline.feed(page)
    assert page.startswith('<!doctype html>\n<html lang="en">')
    assert outline.headings[0] == 1
    assert outline.headings.count(1) == 1
    assert all(after - before <= 1 for before, after in zip(outline.headings, outline.headings[1:], strict=False))
    assert outline.tags.count("table") == outline.tags.count("caption") == 7
    assert outline.bare == []
    assert len(outline.ids) == len(set(outline.ids))
    assert set(outline.named) - {"dead-letters"} <= set(outline.ids) | {"main"}


def test_history_text_is_escaped_in_the_report() -> None:
    page = render(filled())
    body = page[: page.index("<footer>")]
    assert "<img" not in body
    assert "<script" not in page
    assert "&lt;script&gt;document.title" in body
    assert "and 10 more" in body  # of sixty groups of errors
    # The page states that the text of errors was left out.
    [error] = filled().errors[:1]
    without = replace(filled(), errors=[error | {"example_message": None, "example_traceback": None, "error_type": None}])
    assert "Its text is not in this history." in render(without)


def test_durations_are_shown_in_a_suitable_unit() -> None:
    durations = {
        0: "0 ms",
        0.0421: "42.1 ms",
        0.9996: "1 s",
        75: "75 s",
        300: "5 min",
        7199: "2 h",
        200_000: "2.31 d",
        None: "-",
    }
    durations |= {1e8: "1,157 d"}
    assert {value: shown_seconds(value).replace("\u00a0", " ") for value in durations} == durations

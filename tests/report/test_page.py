"""The page in a real browser: it draws, it loads nothing, and the error of a job is text."""

from __future__ import annotations

import json
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
from sa_jobqueue.pipeline.report.charts import figures, shown_seconds
from sa_jobqueue.pipeline.report.contents import Contents
from tests.fixtures.histories import AS_OF, HOSTILE
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


@pytest.mark.long
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_browser_renders_the_report_without_requests_or_injected_code(
    browser: Browser, tmp_path: Path, scheme: str
) -> None:
    path = tmp_path / "report.html"
    path.write_text(render(filled()), encoding="utf-8")
    opened = Opened(browser, path, color_scheme=scheme, viewport={"width": 1100, "height": 800})
    page = opened.page
    for key in ("throughput", "wait", "run", "busy"):
        plot = page.locator(f'[data-plot="plot-{key}"]')
        plot.locator(".point").first.wait_for(timeout=20_000)
        assert plot.get_attribute("role") == "img"
        assert len(plot.get_attribute("aria-label") or "") > 40
    assert page.locator("svg.main-svg .bars .point path").count() >= 6 * (4 + 3)  # what ended, and who was busy
    assert page.locator('[data-plot="plot-wait"] .ytick text').all_text_contents().count(HOSTILE[:39] + "…") == 1

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
    colour = page.evaluate("getComputedStyle(document.querySelector('.xtick text')).fill")
    assert colour == {"light": "rgb(28, 36, 48)", "dark": "rgb(230, 234, 240)"}[scheme]
    page.close()


@pytest.mark.long
def test_the_report_fits_a_phone_and_redraws_when_the_window_is_resized(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(render(filled()), encoding="utf-8")
    # Past the page's own policy: what waits below is made of text.
    page = Opened(browser, path, viewport={"width": 390, "height": 800}, bypass_csp=True).page
    page.locator('[data-plot="plot-busy"] .point').first.wait_for(timeout=20_000)
    wide = """[...document.querySelectorAll("main *, header *")].filter((one) =>
        one.getBoundingClientRect().right > 390 && !one.closest(".wide, svg")).map((one) => one.outerHTML.slice(0, 90))"""
    assert page.evaluate(wide) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    # Long names leave room for the times: no label of an axis reaches into another, or out of its plot.
    cut = """[...document.querySelectorAll("[data-plot=plot-wait], [data-plot=plot-run]")].flatMap((plot) => {
        const around = plot.getBoundingClientRect();
        const labels = [...plot.querySelectorAll(".xtick text, .ytick text, .xtitle")];
        const boxes = labels.map((one) => one.getBoundingClientRect());
        return labels.filter((_, n) => boxes[n].left < around.left || boxes[n].right > around.right || boxes.some((one, m) =>
            m < n && one.left < boxes[n].right && boxes[n].left < one.right && one.top < boxes[n].bottom
            && boxes[n].top < one.bottom));
    }).map((one) => one.textContent)"""
    assert page.evaluate(cut) == []

    page.set_viewport_size({"width": 1100, "height": 800})
    page.wait_for_function("""[...document.querySelectorAll("[data-plot]")].every((place) =>
        place.querySelector(".main-svg").clientWidth === place.clientWidth)""")
    # No title reaches into the words below its plot, no legend into the plot.
    over = """[...document.querySelectorAll("figure")].filter((one) => {
        const [title, words, legend, plot] = [".xtitle", "figcaption", ".legend", ".plot .bg, .bglayer .bg, .xy .gridlayer"]
            .map((what) => one.querySelector(what)?.getBoundingClientRect());
        return (title && title.bottom > words.top) || (legend && plot && legend.bottom > plot.top + 8);
    }).map((one) => one.textContent.slice(-90))"""
    assert page.evaluate(over) == []
    page.close()


def test_a_bulk_enqueue_is_plotted_on_its_own_axis() -> None:
    rows = [row | {"enqueued": 0} for row in filled().throughput]
    for count, axis in ((44, None), (45, "y2")):  # eleven ended in each bucket
        spike = replace(filled(), throughput=[rows[0] | {"enqueued": count}, *rows[1:]])
        plot = json.loads(figures(spike)["throughput"].plot)
        assert [trace.get("yaxis") for trace in plot["data"]] == [None, None, None, None, axis]
        assert ("yaxis2" in plot["layout"]) is (axis is not None)
        assert plot["data"][-1]["name"] == ("enqueued" if axis is None else "enqueued, right axis")
    nothing_ended = [row | dict.fromkeys(("completed", "cancelled", "failed", "dead"), 0) for row in rows]
    assert "yaxis2" not in figures(replace(filled(), throughput=nothing_ended))["throughput"].plot


def test_the_bars_of_busy_workers_are_as_wide_as_their_buckets() -> None:
    row, every = filled().busy[0], timedelta(minutes=1)
    rows = [row | {"bucket_start": row["bucket_start"] + n * every} for n in (0, 2, 5)]
    bars = json.loads(figures(replace(filled(), busy=rows, capacity_every=every))["busy"].plot)["data"]
    assert [bar["y"] for bar in bars] == [[row["busy_workers"], 0, row["busy_workers"], 0, 0, row["busy_workers"]]]
    assert len(set(bars[0]["x"])) == 6


def test_types_with_equal_labels_are_drawn_separately() -> None:
    names = [f"{'company.department.application.tasks.' * 2}{name}" for name in ("load", "check")] + ["others"]
    row, waits = filled().busy[0], filled().latency[0]
    busy = [row | {"type_name": name, "busy_workers": n} for n, name in enumerate(names, 1)]
    drawn = figures(replace(filled(), busy=busy, latency=[waits | {"type_name": name} for name in names]))
    assert sorted(bar["y"] for bar in json.loads(drawn["busy"].plot)["data"]) == [[1], [2], [3]]
    (_, median, *_) = json.loads(drawn["wait"].plot)["data"]
    assert len(set(median["y"])) == 3


@pytest.mark.parametrize(
    ("low", "high", "labels"),
    [
        (0.0, 90.0, ["1 ms", "10 ms", "100 ms", "1 s", "10 s", "60 s"]),
        (0.02, 0.5, ["20 ms", "50 ms", "100 ms", "200 ms", "500 ms"]),
        (100.0, 900.0, ["2 min", "5 min", "10 min"]),
        (2.51, 4.95, ["2.51 s", "4.95 s"]),
        (4.73, 4.74, ["4.74 s"]),
        (3.0, 9e5, ["10 s", "60 s", "10 min", "60 min", "10 h", "24 h", "10 d"]),
    ],
)
def test_the_time_axis_has_labels_with_units(low: float, high: float, labels: list[str]) -> None:
    [row, *_] = filled().latency
    times = row | {"p50_seconds": low, "p95_seconds": high, "p99_seconds": high}
    axis = json.loads(figures(replace(filled(), latency=[times]))["wait"].plot)["layout"]["xaxis"]
    assert [text.replace("\u00a0", " ") for text in axis["ticktext"]] == labels


def test_an_empty_history_renders_a_page_with_a_notice(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    nothing = Contents(sources=("/srv/archive",), generated_at=AS_OF, since=AS_OF, until=None, first=None, last=None)
    path.write_text(render(nothing), encoding="utf-8")
    opened = Opened(browser, path)
    assert "There is no history here" in opened.page.inner_text("main")
    assert "widen the time range" in opened.page.inner_text("main")
    assert (opened.messages, opened.asked) == ([], [path.as_uri()])
    assert path.stat().st_size < 20_000  # no plots, no plotly
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
    assert body.count("<script") == body.count('<script type="application/json"') == 4
    assert body.count("</script>") == 4
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

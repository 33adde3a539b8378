"""How soon a browser on a slow line shows a page and answers: python -m tests.dashboard.paint.

At a fourth of the processor's speed, 1.6 Mbit/s and 40 ms a round trip, of the overview and of a page of jobs. Prints, for
the first visit and for the second, when content is painted first, and when the scripts have run.
"""

from __future__ import annotations

from contextlib import ExitStack

from playwright.sync_api import Browser, Page, sync_playwright
from sqlalchemy import create_engine

from sa_jobqueue import Job
from sa_jobqueue.cli.dashboard import served
from sa_jobqueue.dashboard import Source, dashboard
from sa_jobqueue.migrations.runner import upgrade
from sa_jobqueue.testing.databases import create_database
from sa_jobqueue.testing.servers import open_server
from tests.dashboard.conftest import everyone
from tests.dashboard.large import fill
from tests.dashboard.test_browser import CHROMIUM

JOBS = 100_000
MEASURED = """() => {
    const [paint] = performance.getEntriesByName("first-contentful-paint");
    const [page] = performance.getEntriesByType("navigation");
    const sent = performance.getEntriesByType("resource").reduce((sum, one) => sum + one.transferSize, page.transferSize);
    return [paint.startTime, page.domContentLoadedEventEnd, sent / 1000];
}"""


def slow_page(browser: Browser) -> Page:
    """Return a page of a new browser profile on a slow machine and line."""
    page = browser.new_context().new_page()
    protocol = page.context.new_cdp_session(page)
    protocol.send("Network.enable")
    speed = 1.6e6 / 8
    line = {"offline": False, "latency": 40, "downloadThroughput": speed, "uploadThroughput": speed}
    protocol.send("Network.emulateNetworkConditions", line)
    protocol.send("Emulation.setCPUThrottlingRate", {"rate": 4})
    return page


def main() -> None:
    """Measure, and print a table."""
    with ExitStack() as stack:
        engine = create_engine(create_database(stack.enter_context(open_server()).url))
        stack.callback(engine.dispose)
        with engine.begin() as connection:
            upgrade(connection, Job.__jobqueue__)
        fill(engine, JOBS)
        source = Source(name="queue", engine=engine)
        while source.sampler.sample().value is None:
            pass
        browser = stack.enter_context(sync_playwright()).chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        url = stack.enter_context(served(dashboard([source], authorize=everyone)))
        print(f"{'page':10} {'visit':>6} {'painted, ms':>12} {'ready, ms':>10} {'kB':>6}")
        for name in ("overview", "jobs"):
            page = slow_page(browser)
            for visit in ("first", "second"):
                page.goto(f"{url}/queue/{name}", wait_until="load")
                painted, ready, sent = page.evaluate(MEASURED)
                print(f"{name:10} {visit:>6} {painted:12.0f} {ready:10.0f} {sent:6.0f}", flush=True)
                page.goto("about:blank")
            page.context.close()
        browser.close()


if __name__ == "__main__":
    main()

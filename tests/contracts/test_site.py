"""The documentation site: every page is in its navigation, and a link that leads nowhere fails the build.

`-m long` builds it and opens it in a browser.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from html import unescape
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

import click
import pytest

from sa_jobqueue.cli import main
from tests.contracts.packages import ROOT
from tests.dashboard.chromium import AXE, CHECK, CHROMIUM, RULES, SKIPPED
from tests.fixtures.workers import PATIENCE, wait_until

PARTS = ["Home", "Learn", "Guides", "Reference", "Spark", "Explanation", "Engineering"]
SHOWN = ("", "guides/chains/", "reference/cli/", "explanation/stability/")
LIBRARY = "mermaid.tiny.js"


@pytest.fixture(scope="module")
def script() -> Any:
    """Give the script as a module."""
    loader = SourceFileLoader("site_script", str(ROOT / "scripts" / "site"))
    spec = spec_from_loader("site_script", loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


def test_every_page_is_in_the_navigation_once(script: Any, tmp_path: Path) -> None:
    places = script.pages()
    assert set(places) >= {str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")} | {"README.md"}
    for source, place in {**places, "x": "new/page.md"}.items():
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        text = (ROOT / source).read_text(encoding="utf-8") if source != "x" else "# New"
        (tmp_path / place).write_text(script.staged(source, text, places) if source != "x" else text, encoding="utf-8")
    nav = script.navigation(tmp_path)
    assert [name for part in nav for name in part] == PARTS
    names_in_navigation = list(script.names(nav))
    assert sorted(names_in_navigation) == sorted([*places.values(), "new/page.md"])
    sizes = {name: len(list(script.names([part]))) for part in nav for name in part}
    assert min(sizes["Learn"], sizes["Engineering"], sizes["Spark"]) >= 2
    assert min(sizes["Guides"], sizes["Reference"]) > 20


def test_every_option_has_a_help_text() -> None:
    def options(command: click.Command) -> Iterator[click.Option]:
        yield from (
            parameter for parameter in command.params if isinstance(parameter, click.Option) and not parameter.hidden
        )
        if isinstance(command, click.Group):
            context = click.Context(command)
            for name in command.list_commands(context):
                subcommand = command.get_command(context, name)
                assert subcommand is not None
                yield from options(subcommand)

    assert [option.opts for option in options(main) if len(option.help or "") < 10] == []


def test_links_are_rewritten_outside_code_only(script: Any) -> None:
    places = {"README.md": "index.md", "docs/guides/a.md": "guides/a.md", "docs/b.md": "b.md"}
    text = "<!-- run first:\nx\n\ny\n-->\n[b](../b.md#top) [r](../../README.md) [e](../../examples/webhooks.py) [o](https://o)\n"
    code = "```python\n[b](../../README.md) <!-- kept -->\n```\n"
    staged_page = script.staged("docs/guides/a.md", text + code, places)
    assert staged_page.startswith(
        f"[b](../b.md#top) [r](../index.md) [e]({script.SOURCE}/examples/webhooks.py) [o](https://o)\n"
    )
    assert staged_page.endswith(code)


def test_the_search_leaves_out_tests_that_promises_name(script: Any) -> None:
    text = "**Committed.** Once.\n\n- `tests/a/test_b.py::test_c`\n- `other`\n"
    staged_page = script.staged("docs/a.md", text, {"docs/a.md": "a.md"})
    assert staged_page == text.replace("test_c`", "test_c`{ data-search-exclude }")


def test_lines_that_matter_are_marked(script: Any) -> None:
    text = "<!-- highlight: job( | run -->\n```python\nx = 1\njob(x)\nrun()\njob(2)\n```\n"
    assert script.staged("docs/a.md", text, {"docs/a.md": "a.md"}) == (
        '```python hl_lines="2 3 4"\nx = 1\njob(x)\nrun()\njob(2)\n```\n'
    )
    with pytest.raises(SystemExit, match="no line of the program has nothing"):
        script.staged("docs/a.md", text.replace("run -->", "nothing -->"), {"docs/a.md": "a.md"})


def test_a_link_to_a_file_that_the_repository_lacks_fails(script: Any) -> None:
    with pytest.raises(SystemExit, match=r"docs/a\.md: \.\./examples/none\.py leads nowhere"):
        script.staged("docs/a.md", "[x](../examples/none.py)", {"docs/a.md": "a.md"})


@pytest.mark.parametrize(
    ("html", "address"),
    [
        ('<script src="https://cdn.example.org/x.js"></script>', "https://cdn.example.org/x.js"),
        ('<link rel="stylesheet" href="//cdn.example.org/x.css">', "//cdn.example.org/x.css"),
        ('<script src="x.js"></script><img src="data:image/png;base64,"><a href="https://example.org">y</a>', None),
    ],
)
def test_a_file_from_another_host_is_detected(script: Any, tmp_path: Path, html: str, address: str | None) -> None:
    (tmp_path / "index.html").write_text(html, encoding="utf-8")
    assert script.foreign(tmp_path) == ([f"index.html: loads {address}"] if address else [])


@pytest.mark.parametrize(("link", "is_broken"), [("other.md#here", False), ("missing.md", True), ("other.md#gone", True)])
def test_the_builder_refuses_a_broken_link(script: Any, tmp_path: Path, link: str, *, is_broken: bool) -> None:
    pytest.importorskip("zensical", reason="needs the group `docs`: python scripts/install docs")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/index.md").write_text(f"# A\n\n[x]({link})\n", encoding="utf-8")
    (tmp_path / "docs/other.md").write_text("# B\n\n## Here\n", encoding="utf-8")
    checks = {name: script.CONFIG[name] for name in ("validation", "markdown_extensions")}
    config = "\n".join(f"{name} = {script.toml(value)}" for name, value in {"site_name": "A", **checks}.items())
    (tmp_path / "zensical.toml").write_text(f"[project]\n{config}\n", encoding="utf-8")
    command = [sys.executable, "-m", "zensical", "build", "--strict"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (ended.returncode != 0) == is_broken, ended.stderr


def test_the_site_root_redirects_to_the_newest_release(script: Any, tmp_path: Path) -> None:
    for version in ("dev", "0.9", "0.10a1", "0.10"):
        (tmp_path / version).mkdir()
        for name in ("sitemap.xml", "404.html", *script.TEXTS):
            (tmp_path / version / name).write_text(version, encoding="utf-8")
    script.write_versions(tmp_path)
    assert [(tmp_path / name).read_text(encoding="utf-8") for name in ("404.html", *script.TEXTS)] == ["0.10"] * 3
    assert 'url=0.10/"' in (tmp_path / "index.html").read_text(encoding="utf-8")
    versions = re.findall(r'"version": "([\w.]+)"', (tmp_path / "versions.json").read_text(encoding="utf-8"))
    assert versions == ["0.10", "0.10a1", "0.9", "dev"]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the folder of the site, built strictly."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, str(ROOT / "scripts/site"), str(folder)]
    process = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert process.returncode == 0, process.stdout + process.stderr
    return folder


@pytest.fixture
def site(built: Path) -> Iterator[str]:
    """Give the address of the site."""
    quiet = type("Quiet", (SimpleHTTPRequestHandler,), {"log_message": lambda *_: None})
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(quiet, directory=str(built)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.long
def test_every_page_has_a_description_and_a_social_card(script: Any, built: Path) -> None:
    cards = set()
    for place in script.pages().values():
        page = built / "dev" / place.removesuffix("index.md").removesuffix(".md") / "index.html"
        tags = dict(re.findall(r'<meta (?:name|property)="([\w:]+)" content="([^"]*)"', page.read_text(encoding="utf-8")))
        card = built / tags["og:image"].removeprefix(script.CONFIG["site_url"])
        content = card.read_bytes()
        assert content.startswith(b"\x89PNG\r\n\x1a\n"), place
        assert struct.unpack(">II", content[16:24]) == (1200, 630), place
        assert "sa_jobqueue" in tags["og:title"], place
        assert len(tags["description"]) > 20, place
        assert unescape(tags["og:description"]) == unescape(tags["description"])
        assert tags["twitter:card"] == "summary_large_image"
        cards.add(hashlib.sha256(content).digest())
    assert len(cards) == len(script.pages())  # a page's own words are on it


@pytest.mark.long
def test_llms_txt_describes_every_page_and_the_full_text_has_it(script: Any, built: Path) -> None:
    text = (built / "dev/llms.txt").read_text(encoding="utf-8")
    pages = re.findall(r"^- \[.+\]\(<.+/dev/([\w/.-]+\.md)>\): .+", text, re.MULTILINE)
    assert len(pages) == len(script.pages())
    assert [name for name in pages if not (built / "dev" / name).is_file()] == []
    whole = (built / "dev/llms-full.txt").read_text(encoding="utf-8")
    assert [name for name in pages if (built / "dev" / name).read_text(encoding="utf-8").strip() not in whole] == []


@pytest.mark.long
def test_the_site_works_in_a_browser(site: str) -> None:
    if CHROMIUM is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(SKIPPED)
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=PATIENCE * 1000)
    requests: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for scheme in ("light", "dark"):
            context = browser.new_context(color_scheme=scheme)
            page = context.new_page()
            page.on("request", lambda request: requests.append(request.url))
            for path in SHOWN:
                page.goto(f"{site}/dev/{path}")
                expect(page.locator(".md-version__current")).to_be_visible()
                if AXE.exists():
                    page.evaluate(AXE.read_text(encoding="utf-8"))
                    assert page.evaluate(CHECK, RULES) == [], (scheme, path)
            context.close()
        page = browser.new_page()
        page.goto(f"{site}/")  # leads to the newest version
        expect(page.locator("h1")).to_have_text(re.compile("A job queue for Python"))

        def finds() -> bool:
            # A click before the page's script has run opens nothing, and what is typed then is lost.
            page.reload()
            page.get_by_role("button", name="Search").first.click()
            page.keyboard.type("deduplication")
            with suppress(AssertionError):
                expect(page.get_by_role("option", name=re.compile("eduplic")).first).to_be_visible(timeout=10_000)
                return True
            return False

        wait_until(finds, description="a page that the search finds")
        browser.close()
    assert [url for url in requests if not url.startswith((site, "data:", "blob:"))] == []
    assert [url for url in requests if LIBRARY in url] == []  # these pages have no diagram

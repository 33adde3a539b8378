"""The files that the dashboard serves: small, of fixed versions, under names with hashes, and none from another host."""

from __future__ import annotations

import gzip
import hashlib
import re
import tomllib

from sa_jobqueue.dashboard.rendering import assets
from tests.contracts.packages import ROOT
from tests.dashboard.conftest import PREFIX, Client

TEMPLATES = ROOT / "sa_jobqueue" / "dashboard" / "templates"


def test_vendored_files_match_their_pins_and_include_licences() -> None:
    pinned_files = set()
    for package in tomllib.loads((ROOT / "scripts" / "vendor.toml").read_text(encoding="utf-8"))["package"]:
        assert len(package["sha512"]) == 88
        assert "LICENSE" in package["files"]
        for file in package["files"].values():
            path = ROOT / file["path"]
            if package["name"] in {"axe-core", "@mermaid-js/tiny"} and not path.exists():
                continue  # not in the sdist
            assert hashlib.sha256(path.read_bytes()).hexdigest() == file["sha256"], path
            pinned_files.add(path)
    folders = {path.parent for path in pinned_files}
    assert {path for folder in folders for path in folder.iterdir()} == pinned_files


def test_scripts_and_styles_stay_below_their_size_limits() -> None:
    size = {"js": 0, "css": 0, "svg": 0}
    for name, (content, _) in assets().contents.items():
        size[name.rpartition(".")[2]] += len(gzip.compress(content))
    assert size["js"] <= 60_000
    assert size["css"] <= 20_000


def test_a_static_file_is_cached_forever_under_its_hash(client: Client) -> None:
    page = client.page("/queue/overview")
    links = set(re.findall(r'"([^"]*/static/[^"]+)"', page))
    assert len(links) == len(assets().contents)
    for link in links:
        response = client.get(link.removeprefix(PREFIX))
        assert response.status_code == 200
        assert "immutable" in response.headers["cache-control"]
        is_small = len(response.content) < 500
        assert response.headers.get("content-encoding") == (None if is_small else "gzip")
        assert hashlib.sha256(response.content).hexdigest()[:16] in link
    # A page of another release gets this one's file, which no cache keeps.
    other = client.get("/static/dashboard.0000000000000000.js")
    assert (other.status_code, other.headers["cache-control"]) == (200, "no-store")
    assert client.get("/static/unknown.0000000000000000.js").status_code == 404
    assert client.get("/static/dashboard.js").status_code == 404


def test_charts_need_no_script(client: Client) -> None:
    scripts = {page: re.findall(r"<script[^>]* src=[^>]*>", client.page(f"/queue/{page}")) for page in ("overview", "jobs")}
    assert scripts["overview"] == scripts["jobs"]
    assert not [name for name in assets().names if "plot" in name.casefold()]


def test_pages_with_csrf_tokens_are_not_compressed(client: Client) -> None:
    assert "content-encoding" not in client.get("/queue/jobs?type=" + "a" * 900).headers


def test_templates_use_no_inline_code_and_escape_everything() -> None:
    for path in TEMPLATES.iterdir():
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"\sstyle=|<style|<script(?![^>]*\ssrc=)|\son[a-z]+=|javascript:|https?:", text), path
        assert not re.search(r"\|\s*safe\b|autoescape|Markup", text), path


def test_no_page_refers_to_another_host(client: Client) -> None:
    for path in ("/queue/overview", "/queue/jobs"):
        assert not re.findall(r'(?:src|href|action)="(?:https?:)?//[^"]*"', client.page(path))

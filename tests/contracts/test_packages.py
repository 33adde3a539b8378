"""The files of a release: the same bytes twice, all files and no others, and addresses that agree."""

from __future__ import annotations

import email
import json
import os
import re
import subprocess
import sys
import tarfile
import threading
import tomllib
import zipfile
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from packaging.metadata import Metadata
from packaging.requirements import Requirement

from tests.contracts.packages import ROOT
from tests.fixtures.parts import needs

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
GROUPS: dict[str, list[Any]] = PROJECT["dependency-groups"]
SCHEMAS = {
    "vendor.dependabot": [ROOT / ".github/dependabot.yml"],
    "vendor.github-workflows": WORKFLOWS,
    "vendor.github-issue-forms": [ROOT / f".github/ISSUE_TEMPLATE/{name}.yml" for name in ("bug", "feature")],
    "vendor.github-issue-config": [ROOT / ".github/ISSUE_TEMPLATE/config.yml"],
}


def output_of(*command: str | Path) -> str:
    words = [str(word) for word in command]
    process = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout


@pytest.fixture(scope="module")
def tracked() -> set[str]:
    """Give the names of the files that git tracks."""
    if not (ROOT / ".git").exists():
        pytest.skip("packages are built from a checkout")
    return {name for name in output_of("git", "ls-files", "-z").split("\0") if name and (ROOT / name).exists()}


@pytest.fixture(scope="module")
def folder(tracked: set[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a folder with both packages."""
    folder = tmp_path_factory.mktemp("packages") / "dist"
    assert output_of(sys.executable, ROOT / "scripts/package", folder).count("twice the same") == 2
    return folder


@pytest.fixture(scope="module")
def wheel(folder: Path) -> set[str]:
    """Give the names in the wheel."""
    (path,) = folder.glob("*.whl")
    return set(zipfile.ZipFile(path).namelist())


@pytest.fixture(scope="module")
def metadata(folder: Path) -> Message:
    """Give the wheel's metadata."""
    (path,) = folder.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("dist-info/METADATA"))
        return email.message_from_bytes(archive.read(name))


@pytest.mark.long
def test_the_wheel_contains_the_packages_and_their_licences(wheel: set[str], tracked: set[str], metadata: Message) -> None:
    packages = {name for name in tracked if name.startswith(("sa_jobqueue/", "pyspark_sa_jobqueue/"))}
    assert {name for name in wheel if ".dist-info/" not in name} == packages
    licences = {"LICENSE", *(name for name in packages if name.endswith(".LICENSE"))}
    assert set(metadata.get_all("License-File", [])) == licences
    assert {name.partition("dist-info/licenses/")[2] for name in wheel if "dist-info/licenses/" in name} == licences


@pytest.mark.long
def test_the_sdist_contains_all_tracked_files(folder: Path, tracked: set[str]) -> None:
    (path,) = folder.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    left_out = ("tests/dashboard/vendored/", "docs/site/vendored/")
    assert names - {"PKG-INFO"} == {name for name in tracked if not name.startswith(left_out)}


@pytest.mark.long
def test_the_licence_covers_the_vendored_files(metadata: Message) -> None:
    pinned = tomllib.loads((ROOT / "scripts/vendor.toml").read_text(encoding="utf-8"))["package"]
    shipped = {pin["licence"] for pin in pinned if any("sa_jobqueue/" in file["path"] for file in pin["files"].values())}
    assert set(metadata["License-Expression"].split(" AND ")) == {"MIT", *shipped}


@pytest.mark.long
def test_the_metadata_has_a_version_that_indexes_accept_and_no_extra_for_developers(folder: Path) -> None:
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as archive, tarfile.open(sdist) as tar:
        (name,) = (name for name in archive.namelist() if name.endswith("dist-info/METADATA"))
        pkg_info = tar.extractfile(f"{sdist.name.removesuffix('.tar.gz')}/PKG-INFO")
        assert pkg_info is not None
        contents = [archive.read(name), pkg_info.read()]
    for content in contents:
        metadata = Metadata.from_email(content, validate=True)
        assert metadata.metadata_version == "2.4"  # of the licence expression; 2.5 is newer than some indexes
        assert set(metadata.provides_extra or []) == set(PROJECT["project"]["optional-dependencies"])


def test_no_dependency_group_names_this_package() -> None:
    packages = {Requirement(entry).name for entries in GROUPS.values() for entry in entries if isinstance(entry, str)}
    assert len(packages) > 40
    assert (
        PROJECT["project"]["name"] not in packages
    )  # without a checkout, pip would install what the index has by that name


@pytest.mark.parametrize("group", GROUPS)
def test_each_dependency_group_is_installed_with_the_extras_that_it_needs(group: str) -> None:
    printed = output_of(sys.executable, ROOT / "scripts/install", group, "--uv", "echo", "--quiet", "litestar>=2").split()
    assert printed[:5] == ["pip", "install", "--quiet", "litestar>=2", "--editable"]
    checkout, *packages = printed[5:]
    path, _, extras = checkout.removesuffix("]").partition("[")
    assert path == str(ROOT)
    assert set(filter(None, extras.split(","))) <= set(PROJECT["project"]["optional-dependencies"])
    assert ("testing" in extras) == (group != "docs")
    pending, requirements = [group], set[str]()
    while pending:
        for entry in GROUPS[pending.pop()]:
            if isinstance(entry, str):
                requirements.add(entry)
            else:
                pending.append(entry["include-group"])
    assert set(packages) == requirements


def test_the_readme_names_the_command_that_ci_runs() -> None:
    command = "python scripts/install test"
    assert f"`{command} && pytest`" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"\n{command} --quiet\n" in (ROOT / ".ci/run").read_text(encoding="utf-8")


def test_one_file_has_the_address_for_vulnerabilities(tracked: set[str]) -> None:
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    (address,) = re.findall(r"[\w.]+@[\w.-]+\w", text)
    texts = {name: (ROOT / name).read_bytes() for name in tracked}
    assert [name for name, content in texts.items() if address.encode() in content] == ["SECURITY.md"]


@pytest.mark.long
def test_the_readme_on_the_index_links_to_the_release(metadata: Message) -> None:
    text = str(metadata.get_payload())
    targets = re.findall(r"\]\(([^)\s]+)\)", text)
    assert len(targets) >= 10
    source, tag = PROJECT["project"]["urls"]["Source"], f"v{metadata['Version']}"
    raw = source.replace("github", "raw.githubusercontent")
    assert [target for target in targets if not target.startswith((f"{source}/blob/{tag}/", f"{raw}/{tag}/"))] == []
    assert not re.search(r"(?:src|href)=\"(?!https:)", text)


def test_all_repository_urls_agree(tracked: set[str]) -> None:
    owner, name = PROJECT["project"]["urls"]["Source"].split("/")[-2:]
    for file in ("pyproject.toml", *(file_name for file_name in tracked if file_name.startswith(".github/ISSUE_TEMPLATE"))):
        repositories = set(
            re.findall(r"github(?:usercontent)?\.com/([\w-]+/[\w-]+)", (ROOT / file).read_text(encoding="utf-8"))
        )
        assert repositories <= {f"{owner}/{name}"}, file
    owners = (ROOT / ".github/CODEOWNERS").read_text(encoding="utf-8")
    assert set(re.findall(r"@([\w-]+)/", owners)) == {owner}


@pytest.mark.long
@pytest.mark.parametrize("vulnerable", ["", "celery"])
def test_the_audit_fails_for_a_known_vulnerability(vulnerable: str) -> None:
    needs("pip_audit")
    packages: set[str] = set()

    class Advisories(BaseHTTPRequestHandler):
        """Answers as the service of OSV does."""

        def do_POST(self) -> None:
            name = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["package"]["name"]
            packages.add(name)
            affected = [{"package": {"name": name, "ecosystem": "PyPI"}, "versions": [], "ranges": []}]
            advisory = {"vulns": [{"id": "TEST-1", "summary": "a test", "aliases": [], "affected": affected}]}
            body = json.dumps(advisory if name == vulnerable else {}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Advisories) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        service = ("--vulnerability-service", "osv", "--osv-url", f"http://127.0.0.1:{server.server_port}/v1/query")
        programs = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        process = subprocess.run(
            [str(ROOT / "scripts/audit"), *service],
            env=os.environ | programs,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        server.shutdown()
    assert process.returncode == int(bool(vulnerable)), process.stdout + process.stderr
    assert ("TEST-1" in process.stdout) == bool(vulnerable)
    pinned = re.findall(r"^([\w.-]+)(?:\[.*\])?==", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    assert {re.sub(r"[._-]+", "-", name.lower()) for name in pinned} == {re.sub(r"[._-]+", "-", name) for name in packages}


@pytest.mark.long
@pytest.mark.parametrize("schema", SCHEMAS)
def test_github_files_match_their_schema(schema: str) -> None:
    files = SCHEMAS[schema]
    assert files
    import check_jsonschema  # type: ignore[import-untyped] # takes two seconds: not for each process that collects tests

    result = CliRunner().invoke(check_jsonschema.main, ["--builtin-schema", schema, *map(str, files)])
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_pinned_by_commit(path: Path) -> None:
    uses = re.findall(r"uses: (.+)", path.read_text(encoding="utf-8"))
    assert uses
    for use in uses:
        assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v[\d.]+", use), use

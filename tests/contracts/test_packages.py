"""What a release uploads: the same bytes twice, all files and no others, and addresses that agree."""

from __future__ import annotations

import email
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.message import Message
from pathlib import Path
from typing import Any

import pytest

from tests.contracts.packages import ROOT

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
SCHEMAS = {
    "vendor.github-workflows": WORKFLOWS,
    "vendor.github-issue-forms": [ROOT / f".github/ISSUE_TEMPLATE/{name}.yml" for name in ("bug", "feature")],
    "vendor.github-issue-config": [ROOT / ".github/ISSUE_TEMPLATE/config.yml"],
}


def output_of(*command: str | Path) -> str:
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


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


def test_the_wheel_has_the_packages_and_their_licences(wheel: set[str], tracked: set[str], metadata: Message) -> None:
    packages = {name for name in tracked if name.startswith(("sa_jobqueue/", "pyspark_sa_jobqueue/"))}
    assert {name for name in wheel if ".dist-info/" not in name} == packages
    licences = {"LICENSE", *(name for name in packages if name.endswith(".LICENSE"))}
    assert set(metadata.get_all("License-File", [])) == licences
    assert {name.partition("dist-info/licenses/")[2] for name in wheel if "dist-info/licenses/" in name} == licences


def test_the_sdist_has_all_that_is_tracked(folder: Path, tracked: set[str]) -> None:
    (path,) = folder.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert names - {"PKG-INFO"} == {name for name in tracked if not name.startswith("tests/dashboard/vendored/")}


def test_the_licence_names_what_is_vendored(metadata: Message) -> None:
    pinned = tomllib.loads((ROOT / "scripts/vendor.toml").read_text(encoding="utf-8"))["package"]
    shipped = {one["licence"] for one in pinned if any("sa_jobqueue/" in file["path"] for file in one["files"].values())}
    assert set(metadata["License-Expression"].split(" AND ")) == {"MIT", *shipped}


def test_the_readme_on_the_index_links_to_the_release(metadata: Message) -> None:
    text = str(metadata.get_payload())
    targets = re.findall(r"\]\(([^)\s]+)\)", text)
    assert len(targets) > 20
    source, tag = PROJECT["project"]["urls"]["Source"], f"v{metadata['Version']}"
    raw = source.replace("github", "raw.githubusercontent")
    assert [target for target in targets if not target.startswith((f"{source}/blob/{tag}/", f"{raw}/{tag}/"))] == []
    assert not re.search(r"(?:src|href)=\"(?!https:)", text)


def test_addresses_of_the_repository_agree(tracked: set[str]) -> None:
    owner, name = PROJECT["project"]["urls"]["Source"].split("/")[-2:]
    for file in ("pyproject.toml", *(one for one in tracked if one.startswith(".github/ISSUE_TEMPLATE"))):
        found = set(re.findall(r"github(?:usercontent)?\.com/([\w-]+/[\w-]+)", (ROOT / file).read_text(encoding="utf-8")))
        assert found <= {f"{owner}/{name}"}, file


@pytest.mark.parametrize("schema", SCHEMAS)
def test_files_of_the_forge_match_their_schema(schema: str) -> None:
    files = SCHEMAS[schema]
    assert files
    output_of(sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, *files)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_pinned_by_commit(path: Path) -> None:
    uses = re.findall(r"uses: (.+)", path.read_text(encoding="utf-8"))
    assert uses
    for one in uses:
        assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v[\d.]+", one), one

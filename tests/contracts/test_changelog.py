"""CHANGELOG.md is made from the fragments in changes/, and a release dates it and removes them."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.contracts.packages import ROOT

pytestmark = pytest.mark.slow

FILES = ("CHANGELOG.md", "pyproject.toml", "scripts/changelog", "sa_jobqueue/version.py")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Give a copy of the files of the script."""
    for name in FILES:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    shutil.copytree(ROOT / "changes", tmp_path / "changes")
    return tmp_path


def changelog(project: Path, *options: str, status: int = 0) -> str:
    """Run the script, which must exit with `status`; return the changelog and the script's output."""
    command = [sys.executable, str(project / "scripts/changelog"), *options]
    process = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert process.returncode == status, process.stderr
    return (project / "CHANGELOG.md").read_text(encoding="utf-8") + process.stderr


def set_version(project: Path, version: str) -> None:
    (project / "sa_jobqueue/version.py").write_text(f'__version__ = "{version}"\n', encoding="utf-8")


def add(project: Path, name: str, text: str) -> None:
    (project / "changes" / name).write_text(f"{text}\n", encoding="utf-8")


def test_a_fragment_that_is_not_in_the_changelog_is_found(project: Path) -> None:
    add(project, "+new.fixed.md", "**Worker**: a fix.")
    assert "run scripts/changelog" in changelog(project, "--check", status=1)
    assert "\n- **Worker**: a fix.\n" in changelog(project).partition("### Fixed\n")[2]
    changelog(project, "--check")


@pytest.mark.parametrize("name", ["+new.md", "new.fix.md", "notes.txt"])
def test_a_file_that_is_no_fragment_is_an_error(project: Path, name: str) -> None:
    add(project, name, "**Worker**: a fix.")
    assert name in changelog(project, "--check", status=1)


def test_a_release_dates_its_section_and_the_next_one_stands_above_it(project: Path) -> None:
    set_version(project, "7.8.0")
    add(project, "12.added.md", "**Worker**: a feature\nin two lines.")
    add(project, "+removed.removed.md", "**Worker**: an option.")
    assert "\n## 7.8.0 (not released)\n" in changelog(project)
    released = changelog(project, "--release")
    assert re.search(r"\n## 7\.8\.0 \(\d{4}-\d\d-\d\d\)\n", released)
    assert "not released" not in released
    assert "- **Worker**: a feature\n  in two lines. (#12)\n" in released
    assert released.index("### Removed") < released.index("### Added")
    assert {path.name for path in (project / "changes").iterdir()} == {"README.md", "template.md"}
    changelog(project, "--check")

    assert "released already" in changelog(project, "--release", status=1)
    add(project, "+next.fixed.md", "**Worker**: a fix.")
    assert "released already" in changelog(project, "--release", status=1)
    assert "\n## Next release (not released)\n\n### Fixed\n\n- **Worker**: a fix.\n\n## 7.8.0 (20" in changelog(project)
    set_version(project, "7.8.1")
    again = changelog(project, "--release")
    assert again.index("## 7.8.1 (20") < again.index("## 7.8.0 (20")
    assert "Next release" not in again
    assert released[released.index("## 7.8.0") :] in again

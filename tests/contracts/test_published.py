"""One switch decides whether the package is installed from the package index, and both of its positions are complete."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from sa_jobqueue.errors import MissingExtraError, extras
from sa_jobqueue.version import PUBLISHED, __version__
from tests.contracts.packages import ROOT

TEXTS: list[dict[str, str]] = tomllib.loads((ROOT / "scripts/published.toml").read_text(encoding="utf-8"))["text"]
EXTRAS: dict[str, list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
    "optional-dependencies"
]
SHOWN = (
    *(
        "*.md",
        "contributing/*.md",
        "docs/**/*.md",
        "sa_jobqueue/**/*.py",
        "benchmarks/**/*.py",
        "examples/**/*",
        "scripts/*",
        ".github/**/*",
    ),
    *("tests/fixtures/*.py", "tests/chaos/*.py"),
)
"""Files that users and developers follow. scripts/published.toml has the texts of both positions."""
FROM_INDEX = re.compile(
    r"sa-jobqueue\[|(?<![\w-])install[^\n`&]*[ \"'`]sa-jobqueue\b(?![.-])|^sa-jobqueue[~=<>]=", re.MULTILINE
)
FROM_CHECKOUT = re.compile(
    r"install[^\n`]*(?:path/to/checkout|-e \"?\.)|pip wheel|not on the package index|does not have (?:the|sa-)"
)


def tree(folder: Path, *, published: bool) -> Path:
    """Copy the files that the script reads and writes, with the switch in a position."""
    for name in {"scripts/published", "scripts/published.toml", "sa_jobqueue/version.py", *(text["file"] for text in TEXTS)}:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    turn(folder, published=published)
    return folder


def turn(folder: Path, *, published: bool) -> None:
    """Turn the switch of a copy and run the script."""
    version = folder / "sa_jobqueue/version.py"
    version.write_text(re.sub(r"PUBLISHED = \w+", f"PUBLISHED = {published}", version.read_text(encoding="utf-8")))
    for options in ((), ("--check",)):
        command = [sys.executable, str(folder / "scripts/published"), *options]
        process = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert process.returncode == 0, process.stdout + process.stderr


def contents(folder: Path) -> dict[str, str]:
    """Return the files that the script writes, and all others that are shown, by name."""
    files = {path for pattern in SHOWN for path in ROOT.glob(pattern) if path.is_file()}
    names = {path.relative_to(ROOT).as_posix() for path in files if "__pycache__" not in path.parts} - {
        "scripts/published.toml"
    }
    return {
        name: (folder / name if (folder / name).exists() else ROOT / name).read_text(encoding="utf-8", errors="replace")
        for name in names
        if not name.startswith(("docs/site/vendored", "sa_jobqueue/dashboard/static"))
    }


def test_the_files_are_in_the_position_of_the_switch() -> None:
    command = [sys.executable, str(ROOT / "scripts/published"), "--check"]
    process = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (process.returncode, process.stdout) == (0, f"PUBLISHED is {PUBLISHED}: to write: nothing\n")


def test_nothing_tells_to_install_from_the_index_before_the_package_is_published(tmp_path: Path) -> None:
    texts = contents(tree(tmp_path, published=False))
    matches_by_file = {name: FROM_INDEX.findall(text) for name, text in texts.items() if FROM_INDEX.search(text)}
    assert matches_by_file == {}


@pytest.mark.slow
def test_everything_tells_to_install_from_the_index_after_the_package_is_published(tmp_path: Path) -> None:
    texts = contents(tree(tmp_path, published=True))
    for text in TEXTS:
        if FROM_CHECKOUT.search(text["before"]):
            assert not FROM_CHECKOUT.search(texts[text["file"]]), text["file"]
    files = {name for name, text in texts.items() if FROM_INDEX.search(text)}
    assert {"README.md", "docs/tutorial.md", "docs/guides/quickstart.md", "examples/fastapi_app/requirements.txt"} <= files
    assert "wheels" not in texts["examples/deploy/Dockerfile"]
    (line,) = re.findall(r"^sa-jobqueue.+$", texts["examples/fastapi_app/requirements.txt"], re.MULTILINE)
    assert Requirement(line).specifier.contains(__version__)


def test_the_switch_can_be_turned_back(tmp_path: Path) -> None:
    folder = tree(tmp_path, published=PUBLISHED)
    before = {text["file"]: (folder / text["file"]).read_bytes() for text in TEXTS}
    assert all((ROOT / name).read_bytes() == content for name, content in before.items())
    turn(folder, published=not PUBLISHED)
    assert all((folder / name).read_bytes() != content for name, content in before.items())
    turn(folder, published=PUBLISHED)
    assert {name: (folder / name).read_bytes() for name in before} == before


def required(extra: str) -> set[str]:
    """Return the requirements of an extra in pyproject.toml, with those of the extras that it includes."""
    packages = set[str]()
    for line in EXTRAS[extra]:
        requirement = Requirement(line)
        requirement.marker = None
        packages |= (
            set().union(*map(required, requirement.extras))
            if requirement.name == extras.DISTRIBUTION
            else {str(requirement)}
        )
    return packages


@pytest.fixture
def nothing_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> Any:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", version)


@pytest.mark.usefixtures("nothing_is_installed")
@pytest.mark.parametrize("extra", EXTRAS)
def test_an_error_about_a_missing_extra_names_its_packages_before_publication(
    extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extras, "PUBLISHED", False)
    error = MissingExtraError("a library", extra)
    assert str(error).startswith("a library is not installed: pip install ")
    packages = shlex.split(str(error).partition("pip install ")[2])
    assert {str(Requirement(package)) for package in packages} == required(extra)


@pytest.mark.usefixtures("nothing_is_installed")
@pytest.mark.parametrize("extra", EXTRAS)
def test_an_error_about_a_missing_extra_names_it_after_publication(extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "PUBLISHED", True)
    assert str(MissingExtraError("a library", extra)) == f'a library is not installed: pip install "sa-jobqueue[{extra}]"'


def test_only_the_missing_packages_of_an_extra_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "PUBLISHED", False)
    installed = metadata.version

    def version(name: str) -> str:
        if name == "pyarrow":
            raise metadata.PackageNotFoundError(name)
        return "0.1" if name == "jinja2" else installed(name)

    monkeypatch.setattr(metadata, "version", version)
    assert extras.install_command("archive") == 'pip install "pyarrow>=18"'
    assert extras.install_command("dashboard") == 'pip install "jinja2>=3.1,<4"'


def test_a_library_that_is_imported_from_its_folder_names_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "PUBLISHED", False)
    monkeypatch.setattr(extras, "DISTRIBUTION", "sa-jobqueue-is-not-installed")
    assert extras.install_command("archive") == 'pip install -e ".[archive]" in the checkout'

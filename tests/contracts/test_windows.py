"""Every module can be imported on Windows, where programs enqueue, migrate and use the command line."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.every_python]

IMPORTS_EVERYTHING = '''
import importlib, os, pkgutil, select, signal, socket, sys, time

PACKAGES = ("sa_jobqueue", "pyspark_sa_jobqueue")

def load(name):
    """Import a module; return whether it could be: it may need an extra that is not installed."""
    try:
        importlib.import_module(name)
    except ImportError as error:
        if (error.name or "").partition(".")[0] in PACKAGES:
            raise
        return False
    return True

def load_all():
    """Import every module; return the names of those that could be."""
    packages = [package for package in PACKAGES if load(package)]
    names = list(packages)
    for package in packages:
        path = importlib.import_module(package).__path__
        names += [module.name for module in pkgutil.walk_packages(path, f"{package}.", onerror=lambda name: None)]
    return {name for name in names if not name.endswith("__main__") and load(name)}

# First as it is here, so that third parties are loaded: they have code of their own for Windows.
everything = load_all()
for name in [name for name in sys.modules if name.partition(".")[0] in PACKAGES]:
    del sys.modules[name]

for name in ("pwd", "grp", "fcntl", "resource", "termios", "tty", "pty", "syslog", "posix"):
    sys.modules[name] = None
for module, names in {
    os: "fork register_at_fork geteuid getuid getegid getgid setuid setgid setgroups initgroups setsid setpgid getpgid "
        "killpg statvfs uname getloadavg sysconf wait3 wait4 pread pwrite sched_getaffinity memfd_create chown mkfifo nice",
    signal: "SIGKILL SIGHUP SIGUSR1 SIGUSR2 SIGQUIT SIGALRM SIGCHLD SIGTSTP SIGPIPE pthread_sigmask setitimer sigwait",
    socket: "AF_UNIX SO_REUSEPORT SCM_RIGHTS CMSG_LEN send_fds recv_fds",
    select: "poll epoll",
    time: "tzset",
}.items():
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)

for name in sorted(everything):
    importlib.import_module(name)
print(len(everything))
'''


def test_every_module_is_imported_without_what_only_posix_has() -> None:
    command = [sys.executable, "-c", IMPORTS_EVERYTHING]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) > 200

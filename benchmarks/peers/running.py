"""Starts adapters and listens to them: `adapters/protocol` has the words."""

from __future__ import annotations

import json
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from typing import Any, Final, Self

from sqlalchemy import make_url

from benchmarks.harness import CaseFailedError
from benchmarks.peers import environments
from benchmarks.peers.catalogue import System
from benchmarks.place import Place

PATIENCE: Final = 60.0
_LOG_TAIL: Final = 2_000


class AdapterError(CaseFailedError):
    """A system's process ended, or did not answer in time; the message has its last output."""


class Inbox:
    """The messages of one process, or of several that answer together; unexpected ones are kept."""

    def __init__(self) -> None:
        self._messages: SimpleQueue[dict[str, Any] | None] = SimpleQueue()
        self._unexpected: list[dict[str, Any]] = []
        self.put = self._messages.put

    def take(self, event: str, patience: float) -> dict[str, Any] | None:
        """Return the next event of a name; None when a process ended. Raises: Empty when it does not come in time."""
        for message in self._unexpected:
            if message["event"] == event:
                self._unexpected.remove(message)
                return message
        until = time.monotonic() + patience
        while (answer := self._messages.get(timeout=max(0.0, until - time.monotonic()))) is not None:
            if answer["event"] == event:
                return answer
            self._unexpected.append(answer)
        return None


class Running:
    """One process of a system: `expect` its messages, `tell` it to go or to stop."""

    def __init__(self, system: System, url: str, *, inbox: Inbox | None = None, **orders: Any) -> None:
        self._name = system.name
        self._inbox = inbox or Inbox()
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed in close()
        self._process = subprocess.Popen(
            [environments.interpreter(system), environments.script(system)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=environments.variables(system),
        )
        self.pid = self._process.pid
        threading.Thread(target=self._listen, daemon=True).start()
        self.send(json.dumps({"url": url, **system.orders, **orders}))

    def send(self, line: str) -> None:
        """Write a line to it; one that is gone does not hear."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return

    def expect(self, event: str, patience: float = PATIENCE) -> dict[str, Any]:
        """Wait for an event; others stay for who expects them. Raises: AdapterError."""
        try:
            message = self._inbox.take(event, patience)
        except Empty:
            raise AdapterError(f"{self._name} did not say {event} in {patience:.0f} s{self._log()}") from None
        if message is None:
            raise AdapterError(f"{self._name} ended before it said {event}{self._log()}")
        return message

    def close(self) -> None:
        """Wait for its end, or kill it."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
            self._process.wait(timeout=0.5)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        self._errors.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._inbox.put(json.loads(line))
        self._inbox.put(None)

    def _log(self) -> str:
        self._errors.seek(0)
        log = self._errors.read()[-_LOG_TAIL:]
        return f":\n{log}" if log else ""


def start(system: System, place: Place, *, inbox: Inbox | None = None, **orders: Any) -> Running:
    """Start a system's process with its orders; those with one inbox answer together."""
    return Running(system, _address(system, place), inbox=inbox, **orders)


def setup(system: System, url: str) -> None:
    """Let a system create its tables."""
    with Running(system, _plain(system, url), do="setup", jobs=0) as process:
        process.expect("gone")


@contextmanager
def working(system: System, place: Place, **orders: Any) -> Iterator[Running]:
    """Yield a worker that has been started; it is stopped at the end, and waited for."""
    with start(system, place, do="work", **orders) as worker:
        worker.expect("ready")
        worker.send("go")
        yield worker
        worker.send("stop")
        worker.expect("gone")


def wait_until(condition: Callable[[], bool], patience: float) -> None:
    """Poll until a condition holds. Raises: TimeoutError."""
    until = time.monotonic() + patience
    while not condition():
        if time.monotonic() > until:
            raise TimeoutError
        time.sleep(0.01)


def _address(system: System, place: Place) -> str:
    return place.broker if place.broker is not None else _plain(system, place.url)


def _plain(system: System, url: str) -> str:
    # SQLAlchemy alone wants the driver's name in it.
    libpq_url = make_url(url)
    if system.environment is not None:
        libpq_url = libpq_url.set(drivername="postgresql")
    return libpq_url.render_as_string(hide_password=False)

"""Prometheus' own programs, from Debian's package, for tests."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.workers import PATIENCE, wait_until


def program(name: str) -> str:
    """Return where a program is; without it a test is skipped, but fails in CI."""
    path = shutil.which(name)
    if path is None:
        words = f"{name} is not installed: apt-get install prometheus"
        if os.environ.get("CI"):
            pytest.fail(words)
        pytest.skip(words)
    return path


def promtool(*arguments: str, within: Path) -> str:
    """Run promtool in a folder; return its output. Fails with that, where it is not content."""
    process = subprocess.run([program("promtool"), *arguments], cwd=within, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout


class Prometheus:
    """One that runs."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/api/v1/"

    def get(self, path: str, **parameters: str) -> Any:
        """Ask its API."""
        query = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(f"{self._url}{path}?{query}", timeout=PATIENCE) as answer:
            return json.load(answer)["data"]

    def value(self, expression: str) -> float | None:
        """Return the current value of an expression; None where there is none."""
        series = self.get("query", query=expression)["result"]
        return float(series[0]["value"][1]) if series else None

    def until(self, expression: str, value: float) -> None:
        """Wait until it has a value."""
        wait_until(lambda: self.value(expression) == value, description=f"{expression} == {value}")


@contextmanager
def serving(folder: Path, configuration: str) -> Iterator[Prometheus]:
    """Run a Prometheus for the length of a block, on a port that it finds free."""
    (folder / "prometheus.yml").write_text(configuration)
    options = ["--config.file=prometheus.yml", "--storage.tsdb.path=data", "--web.listen-address=127.0.0.1:0"]
    log = folder / "prometheus.log"
    with log.open("wb") as out:
        process = subprocess.Popen([program("prometheus"), *options], cwd=folder, stdout=out, stderr=out)
    try:
        # The address in its log: with port 0 the kernel has chosen.
        listening = re.compile(r'msg="Listening on" address=127\.0\.0\.1:([1-9]\d*)')
        ready = "Server is ready"
        wait_until(lambda: process.poll() is not None or ready in log.read_text(), description="Prometheus")
        match = listening.search(log.read_text())
        assert match is not None, log.read_text()
        yield Prometheus(int(match[1]))
    finally:
        process.terminate()
        process.wait(PATIENCE)

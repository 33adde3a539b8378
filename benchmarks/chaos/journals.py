"""The journals of the processes of a run: read while they write, and copied into tables when they are gone."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psycopg

SCHEMA: Final = """
CREATE TABLE chaos_enqueued (number int, kind text, acknowledged bool, at float8);
CREATE TABLE chaos_run (run text PRIMARY KEY, number int, kind text, pid int, began float8, finished float8, how text);
"""
"""Beside the queue's own tables, whichever it is. Times are of the server's machine, in seconds since 1970."""


@dataclass
class Run:
    """One time that a job's handler was called."""

    run: str
    number: int
    kind: str
    pid: int
    began: float
    finished: float | None = None
    how: str | None = None
    """`ended` or `failed`; None where the process was gone before."""


@dataclass
class Journals:
    """All journals of a directory; `read` again for new lines."""

    directory: Path
    runs: dict[str, Run] = field(default_factory=dict)
    enqueued: list[tuple[int, str, bool, float]] = field(default_factory=list)
    latest: float = 0.0
    """When the latest of the runs that came to their end began."""
    _read: dict[Path, int] = field(default_factory=dict)

    def read(self) -> None:
        """Read the lines written since."""
        for path in self.directory.glob("*-*"):
            if path.name.startswith(("runs-", "enqueued-")):
                with path.open("rb") as file:
                    file.seek(self._read.get(path, 0))
                    text = file.read()
                # A line that is half written is read the next time.
                whole = text[: text.rfind(b"\n") + 1]
                self._read[path] = self._read.get(path, 0) + len(whole)
                for line in whole.splitlines():
                    self._note(json.loads(line))

    def is_acknowledged(self, numbers: set[int]) -> bool:
        """Return whether all these jobs are known to be enqueued."""
        return numbers <= {number for number, _, acknowledged, _ in self.enqueued if acknowledged}

    def copy(self, conninfo: str) -> None:
        """Copy everything into the tables of `SCHEMA`, which are created."""
        with psycopg.connect(conninfo) as connection, connection.cursor() as cursor:
            cursor.execute(SCHEMA)
            with cursor.copy("COPY chaos_enqueued FROM STDIN") as rows:
                for note in self.enqueued:
                    rows.write_row(note)
            with cursor.copy("COPY chaos_run FROM STDIN") as rows:
                for run in self.runs.values():
                    rows.write_row((run.run, run.number, run.kind, run.pid, run.began, run.finished, run.how))

    def _note(self, line: dict[str, Any]) -> None:
        match line["event"]:
            case "began":
                self.runs[line["run"]] = Run(line["run"], line["number"], line["kind"], line["pid"], line["at"])
            case "finished":
                run = self.runs[line["run"]]
                run.finished, run.how = line["at"], line["how"]
                if run.how == "ended":
                    self.latest = max(self.latest, run.began)
            case "enqueued":
                self.enqueued.append((line["number"], line["kind"], line["acknowledged"], line["at"]))

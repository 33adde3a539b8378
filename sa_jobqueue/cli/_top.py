"""The screen of `sa-jobqueue top`: findings, queues, workers, longest running jobs, latest failures."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar, Final

from rich.text import Text
from sqlalchemy.exc import DBAPIError
from textual import work
from textual.app import App, ComposeResult
from textual.binding import BindingType
from textual.containers import Grid
from textual.widgets import DataTable, Footer, Static

from sa_jobqueue.cli._output import first_line, shown
from sa_jobqueue.errors import InvalidOptionError, SchemaError
from sa_jobqueue.observe.health import Health, Severity
from sa_jobqueue.observe.health.overview import Overview
from sa_jobqueue.policies.fairness import label_of, queue_key_of
from sa_jobqueue.printable import span

ReadOverview = Callable[[], Overview]

INTERVALS: Final = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
"""Refresh intervals in seconds that the keys choose from."""
STYLES: Final = {Severity.OK: "green", Severity.WARNING: "yellow", Severity.CRITICAL: "bold red"}
_FINDINGS: Final = 4
_ERROR: Final = 80
_COLUMNS: Final = {
    "queues": ("queue", "due", "claim age", "later", "in/s", "out/s", "died"),
    "workers": ("worker", "host", "state", "running", "heartbeat"),
    "longest": ("type", "time", "progress", "queue", "attempt", "worker", "job"),
    "failures": ("type", "ago", "error", "attempt", "now", "job"),
}
_TITLES: Final = {"longest": "longest running", "failures": "latest failures"}
Cells = Sequence[tuple[str, Any]]
"""A row: the text of each cell, and the value that it sorts by."""
_AS_READ: Final = (0, False)
"""Sort column and whether reversed; this pair keeps the order in which the rows were read."""


class TopApp(App[None]):
    """Reads an overview at an interval, in a thread, and shows it. Errors are shown, and the next read is tried.

    `connect`: a context manager that yields the function which reads; entered again when its connection is lost.
    `screenshot`: a file that the first screen is written to; the app exits then.
    """

    CSS = """
    #summary { height: auto; padding: 0 1; }
    Grid { grid-size: 2; grid-columns: 1fr 1fr; grid-rows: 1fr 1fr; }
    DataTable { border: round $primary; height: 100%; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        ("q", "quit", "quit"),
        ("r", "read", "refresh now"),
        ("p", "pause", "pause"),
        ("s", "sort", "sort by the next column"),
        ("S", "reverse", "reverse"),
        ("plus", "interval(1)", "slower"),
        ("minus", "interval(-1)", "faster"),
    ]
    ENABLE_COMMAND_PALETTE = False
    TITLE = "sa-jobqueue top"

    def __init__(
        self,
        connect: Callable[[], AbstractContextManager[ReadOverview]],
        *,
        interval: timedelta = timedelta(seconds=2),
        screenshot: str | None = None,
    ) -> None:
        super().__init__()
        if interval < timedelta(milliseconds=100):
            raise InvalidOptionError("interval", f"must be at least 0.1 s, got {interval.total_seconds():g} s")
        self._connect = connect
        self._interval = interval.total_seconds()
        self._screenshot = screenshot
        self._going = asyncio.Event()
        self._going.set()
        self._seen: Overview | None = None
        self._error = ""
        self._sorting = dict.fromkeys(_COLUMNS, _AS_READ)
        self._read_overview: ReadOverview | None = None
        self._connection = ExitStack()
        self._reading = threading.Lock()
        self.reads = 0
        """Number of overviews shown."""

    def compose(self) -> ComposeResult:
        """Lay out the screen."""
        yield Static(id="summary")
        with Grid():
            for name, columns in _COLUMNS.items():
                table: DataTable[Text] = DataTable(id=name, cursor_type="row", zebra_stripes=True)
                table.border_title = _TITLES.get(name, name)
                table.add_columns(*columns)
                yield table
        yield Footer()

    def on_mount(self) -> None:
        """Start to read."""
        self.query_one("#queues").focus()
        self.action_read()

    async def on_unmount(self) -> None:
        """Close the connection."""
        await asyncio.to_thread(self._disconnect)

    @work(exclusive=True)
    async def action_read(self) -> None:
        """Read and show an overview at every interval."""
        while True:
            try:
                self._seen = await asyncio.to_thread(self._read)
                self._error = ""
            except SchemaError as error:
                self._error = str(error)
            except DBAPIError as error:
                # Only the first line: the rest quotes the statement with its parameters.
                self._error = str(error.orig).strip().partition("\n")[0]
            self.reads += 1
            self._show()
            if self._screenshot is not None:
                self.call_after_refresh(self._save, self._screenshot)
            await asyncio.sleep(self._interval)
            await self._going.wait()

    def _read(self) -> Overview:
        with self._reading:
            try:
                if self._read_overview is None:
                    self._read_overview = self._connection.enter_context(self._connect())
                return self._read_overview()
            except (DBAPIError, SchemaError):
                self._close()
                raise

    def _disconnect(self) -> None:
        with self._reading:
            self._close()

    def _close(self) -> None:
        self._read_overview = None
        with suppress(DBAPIError):
            self._connection.close()

    def _save(self, path: str) -> None:
        self.save_screenshot(str(Path(path).name), path=str(Path(path).parent))
        self.exit(return_code=1 if self._error else 0)

    # Actions of the keys.

    def action_pause(self) -> None:
        """Pause or continue."""
        if self._going.is_set():
            self._going.clear()
        else:
            self._going.set()
        self._show()

    def action_interval(self, step: int) -> None:
        """Choose the next longer or shorter interval."""
        longer = [one for one in INTERVALS if one > self._interval]
        shorter = [one for one in INTERVALS if one < self._interval]
        self._interval = (longer[:1] or [INTERVALS[-1]] if step > 0 else shorter[-1:] or [INTERVALS[0]])[0]
        self._show()

    def action_sort(self) -> None:
        """Sort the table that has the focus by its next column."""
        name = self._focused()
        column, is_reversed = self._sorting[name]
        self._sorting[name] = ((column + 1) % len(_COLUMNS[name]), is_reversed)
        self._show()

    def action_reverse(self) -> None:
        """Reverse the sort order."""
        name = self._focused()
        column, is_reversed = self._sorting[name]
        self._sorting[name] = (column, not is_reversed)
        self._show()

    def _focused(self) -> str:
        return self.focused.id if self.focused is not None and self.focused.id in self._sorting else "queues"

    # Display.

    def _show(self) -> None:
        self.query_one("#summary", Static).update(self._summary())
        if self._seen is None:
            return
        for name, rows in rows_of(self._seen).items():
            self._fill(name, rows)

    def _fill(self, name: str, rows: Sequence[Cells]) -> None:
        table = self.query_one(f"#{name}", DataTable)
        column, is_reversed = self._sorting[name]
        if self._sorting[name] != _AS_READ:
            rows = sorted(rows, key=lambda row: (row[column][1] is None, row[column][1]), reverse=is_reversed)
        row, across = table.cursor_row, table.scroll_x
        table.clear()
        for cells in rows:
            table.add_row(*(Text(shown(text)) for text, _ in cells))
        table.move_cursor(row=min(row, len(rows) - 1) if rows else 0, animate=False)
        table.scroll_to(x=across, animate=False)
        order = f", by {_COLUMNS[name][column]}{' reversed' if is_reversed else ''}"
        table.border_title = _TITLES.get(name, name) + (order if self._sorting[name] != _AS_READ else "")

    def _summary(self) -> Text:
        state = f"every {self._interval:g} s" if self._going.is_set() else "paused"
        if self._seen is None:
            return Text(f"loading, {state}" if not self._error else f"cannot read the queue: {shown(self._error)}")
        text = summary(self._seen.health)
        text.append(f"  ({state})", style="dim")
        if self._error:
            text.append(f"\ncannot read the queue: {shown(self._error)}", style="bold red")
        return text


def summary(report: Health) -> Text:
    """Return the findings, the most severe first, and the figures of the whole queue. Pure."""
    at = shown(report.measured_at)
    text = Text()
    text.append(f"{str(report.severity).upper()}  {at}", style=STYLES[report.severity])
    rates, workers = report.rates, report.workers
    figures = {
        "queues": f"{report.due:,} due, the oldest waits for {span(report.claim_age)}",
        "rates": f"{rates.per_second(rates.arrived):,.1f}/s in, {rates.per_second(rates.completed):,.1f}/s out",
        "running": f"{report.running.running:,} running",
        "workers": f"{workers.saturation:.0%} of {workers.slots} slots",
        "failures": f"{report.failures.unresolved:,}{'+' if report.failures.is_capped else ''} dead letters",
        "horizon": f"horizon {report.horizon.age:,}",
    }
    text.append("   " + "; ".join(line for name, line in figures.items() if name not in report.missing))
    for finding in report.findings[:_FINDINGS]:
        text.append(f"\n{finding.severity!s:8} ", style=STYLES[finding.severity])
        text.append(f"{finding.code}: {shown(finding.summary)}")
    if len(report.findings) > _FINDINGS:
        text.append(f"\nand {len(report.findings) - _FINDINGS} more: sa-jobqueue health", style="dim")
    return text


def rows_of(seen: Overview) -> dict[str, list[Cells]]:
    """Return the rows of each table. Pure."""
    report, window = seen.health, seen.health.rates
    depths = {label_of(queue_key_of(queue.queue, queue.fairness_key)): queue for queue in report.queues}
    rates = {queue.queue: queue for queue in window.queues}
    queues: list[Cells] = []
    for name in sorted({*depths, *rates}):
        depth, rate = depths.get(name), rates.get(name)
        more = "+" if depth is not None and depth.is_capped else ""
        due, later, age = (depth.due, depth.later, depth.claim_age) if depth is not None else (0, 0, timedelta(0))
        arrived, completed, died = (rate.arrived, rate.completed, rate.died) if rate is not None else (0, 0, 0)
        per_second = [(f"{window.per_second(count):,.1f}", count) for count in (arrived, completed)]
        waits = [(f"{due:,}{more}", due), (span(age), age), (f"{later:,}{more}", later)]
        queues.append([(name, name), *waits, *per_second, (f"{died:,}", died)])
    workers: list[Cells] = []
    for one in report.workers.workers:
        is_silent = one.silent_for > report.workers.heartbeat_timeout
        state = "silent" if is_silent else one.state.value
        running = (f"{one.running}/{one.concurrency}", one.running / max(one.concurrency, 1))
        heartbeat = (f"{span(one.silent_for)} ago", one.silent_for)
        workers.append([(one.name, one.name), (one.host, one.host), (state, state), running, heartbeat])
    longest: list[Cells] = []
    for job in seen.longest:
        lasted = job.running_for or timedelta(0)
        progress = ("-", None) if job.progress is None else (str(job.progress)[:_ERROR], job.progress.fraction)
        where = [_cell(value) for value in (job.queue, job.attempt, job.worker_id, job.job_id)]
        longest.append([_cell(job.type_name), (span(lasted), lasted), progress, *where])
    failures: list[Cells] = []
    for failed in seen.failures:
        error = first_line({"type": failed.error_type, "message": failed.error_message}) if failed.error_type else ""
        what = (error or failed.outcome.replace("_", " "))[:_ERROR]
        ago = (f"{span(failed.ago)} ago", failed.ago)
        last = (what, failed.attempt, failed.status, failed.job_id)
        failures.append([_cell(failed.type_name), ago, *map(_cell, last)])
    return {"queues": queues, "workers": workers, "longest": longest, "failures": failures}


def _cell(value: Any) -> tuple[str, Any]:
    return str(value), value

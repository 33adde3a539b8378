"""The charts of the page: bars over time, as paths of SVG, which need no script."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from sa_jobqueue.pipeline.report.contents import Contents, Row

_ENDS: Final = ("completed", "cancelled", "failed", "dead")
_UNITS: Final = (
    (0.9995, 0.001, "ms"),
    (119.5, 1, "s"),
    (7170, 60, "min"),
    (172_000, 3600, "h"),
    (86_400 * 999, 86_400, "d"),
)
"""Upper limit in seconds, divisor and name of each unit; the limits are where three digits would round up."""


@dataclass(frozen=True, slots=True)
class Chart:
    """Stacked bars over time, in a box of 100 by 100."""

    title: str
    most: float
    """The height of the highest bar."""
    at: datetime
    """Its bucket."""
    first: datetime
    last: datetime
    """End of the last bucket."""
    paths: dict[str, str]
    """A path of SVG for each series."""


def charts(contents: Contents) -> dict[str, Chart]:
    """Return the charts by their places in the page, without empty ones."""
    ended = "Completed and cancelled jobs, failed attempts and dead letters"
    made = {
        "enqueued": _chart("Enqueued jobs", contents.throughput, ("enqueued",), contents.every),
        "ended": _chart(ended, contents.throughput, _ENDS, contents.every),
        "busy": _chart("Busy workers", contents.busy, ("busy_workers",), contents.capacity_every),
    }
    return {name: chart for name, chart in made.items() if chart is not None}


def bars(rows: Sequence[Row], names: Sequence[str], first: datetime, last: datetime, every: timedelta) -> dict[str, str]:
    """Return a path of SVG for each series: the bars of buckets between two instants, one series on top of the other."""
    most, width = max(_sums(rows, names).values()), 100 * every / (last - first)
    reached: dict[datetime, float] = defaultdict(float)
    paths = dict.fromkeys(names, "")
    for row in rows:
        start = row["bucket_start"]
        for name in names:
            if row[name]:
                left, height = 100 * (start - first) / (last - first), 100 * row[name] / most
                bottom = 100 - reached[start]
                paths[name] += f"M{left:.2f} {bottom:.2f}v{-height:.2f}h{0.9 * width:.2f}v{height:.2f}z"
                reached[start] += height
    return paths


def _chart(title: str, rows: Sequence[Row], names: Sequence[str], every: timedelta) -> Chart | None:
    sums = _sums(rows, names)
    if not any(sums.values()):
        return None
    first, last = min(sums), max(sums) + every
    highest = max(sums, key=lambda start: sums[start])
    return Chart(title, sums[highest], highest, first, last, bars(rows, names, first, last, every))


def _sums(rows: Sequence[Row], names: Sequence[str]) -> dict[datetime, float]:
    sums: dict[datetime, float] = defaultdict(float)
    for row in rows:
        sums[row["bucket_start"]] += sum(row[name] for name in names)
    return sums


def sparkline(trend: Sequence[Row], first: datetime, last: datetime, every: timedelta) -> str:
    """Return the path of an SVG of counts over the time of the report."""
    begin = min(first, trend[0]["bucket_start"])
    return bars(trend, ("count",), begin, max(last, begin) + every, every)["count"]


def shown_seconds(value: float | None) -> str:
    """Return a duration as text in a fitting unit, on one line; a dash for None."""
    if value is None:
        return "-"
    for limit, unit, name in _UNITS:
        if value < limit:
            return f"{value / unit:.3g}\u00a0{name}"
    return f"{value / 86_400:,.0f}\u00a0d"

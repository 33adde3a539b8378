"""The plots of the page as plotly JSON, each with a text alternative."""

from __future__ import annotations

import html
import json
from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from sa_jobqueue.pipeline.report.contents import Contents, Row

COLORS: Final = {
    "enqueued": "#7a869a",
    "completed": "#2f855a",
    "failed": "#dd8a00",
    "dead": "#c53030",
    "cancelled": "#805ad5",
}
_SERIES: Final = ("#2b6cb0", "#2f855a", "#dd8a00", "#805ad5", "#c53030", "#0f8b8d", "#7a869a")
"""Distinguishable for most people, and readable on light and dark backgrounds; every plot also has a table."""
_MARKS: Final = {"p50": ("circle", _SERIES[0]), "p95": ("diamond", _SERIES[2]), "p99": ("square", _SERIES[4])}
_UNITS: Final = ((0.9995, 0.001, "ms"), (119.5, 1, "s"), (7170, 60, "min"), (172_000, 3600, "h"))
"""Upper limit in seconds, divisor and name of each unit; the limits are where three digits would round up."""
_DECADES: Final = (0.001, 0.01, 0.1, 1, 10, 60, 600, 3600, 36_000, 86_400, 864_000)
_STEPS: Final = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30),
    *(60, 120, 300, 600, 1200, 1800, 3600, 7200, 18_000, 36_000, 86_400, 172_800, 432_000, 864_000),
)
_STACKED: Final[Row] = {"barmode": "stack", "xaxis": {"tickangle": 0}}
"""Bars over time. Fewer labels on a narrow screen, instead of slanted ones that reach out of the plot."""
_MOST_TYPES: Final = 12
_SPIKE: Final = 4
"""Ratio of jobs enqueued to jobs ended in a bucket above which one shared axis would make the bars too low to read."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A plot: `key` names its place in the page, `alt` is its text alternative."""

    key: str
    title: str
    alt: str
    plot: str
    """JSON for plotly, safe inside a script element."""


def figures(contents: Contents) -> dict[str, Figure]:
    """Return the plots by key, without empty ones."""
    made = [_throughput(contents), _latency(contents, "wait"), _latency(contents, "run"), _busy(contents)]
    return {figure.key: figure for figure in made if figure is not None}


def sparkline(trend: list[Row], first: datetime | None, last: datetime | None) -> str:
    """Return the path of a 120 by 24 SVG of counts over the time of the report."""
    if first is None or last is None or not trend:
        return ""
    begin = min(first, trend[0]["bucket_start"])
    span = max((last - begin).total_seconds(), 1.0)
    most = max(row["count"] for row in trend)
    bars = []
    for row in trend:
        x = min(117.0, 117 * max(0.0, (row["bucket_start"] - begin).total_seconds()) / span)
        height = max(2.0, 22 * row["count"] / most)
        bars.append(f"M{x:.1f} 24v{-height:.1f}h3v{height:.1f}z")
    return "".join(bars)


def _throughput(contents: Contents) -> Figure | None:
    rows = contents.throughput
    if not rows:
        return None
    x = [_instant(row["bucket_start"]) for row in rows]
    at = {"x": x} | _period(contents.every, x[0])
    ended = [name for name in ("completed", "cancelled", "failed", "dead") if any(row[name] for row in rows)]
    traces: list[Row] = [
        {"type": "bar", "name": name, "y": [row[name] for row in rows], "marker": {"color": COLORS[name]}} | at
        for name in ended
    ]
    line = {"color": COLORS["enqueued"], "shape": "hvh"}
    enqueued = {"type": "scatter", "mode": "lines+markers", "name": "enqueued", "line": line} | at
    traces.append(enqueued | {"y": [row["enqueued"] for row in rows], "marker": {"size": 4}})
    most = max(rows, key=lambda row: row["completed"])
    total = {name: sum(row[name] for row in rows) for name in ("enqueued", "completed", "failed", "dead")}
    alt = (
        f"{total['enqueued']:,} jobs enqueued, {total['completed']:,} completed, {total['failed']:,} attempts failed, "
        f"{total['dead']:,} dead letters; most completed at {_words(most['bucket_start'])}: {most['completed']:,}."
    )
    layout = _STACKED | {"yaxis": {"title": {"text": "per bucket"}, "rangemode": "tozero"}}
    highest = max(sum(row[name] for name in ended) for row in rows)
    if ended and max(row["enqueued"] for row in rows) > _SPIKE * highest:
        traces[-1] |= {"name": "enqueued, right axis", "yaxis": "y2"}
        right = {"overlaying": "y", "side": "right", "rangemode": "tozero", "showgrid": False, "zeroline": False}
        layout |= {"yaxis2": right | {"title": {"text": "enqueued"}, "automargin": True}}
    return _figure("throughput", "Throughput over time", alt, traces, layout)


def _latency(contents: Contents, measure: str) -> Figure | None:
    rows = [row for row in contents.latency if row["measure"] == measure][:_MOST_TYPES]
    if not rows:
        return None
    rows.reverse()  # the first on top
    labels = [_label(row["type_name"]) for row in rows]
    ends = [[_drawn(row["p50_seconds"]), _drawn(row["p99_seconds"]), None] for row in rows]
    places = list(range(len(rows)))  # long names can have the same label
    lines: Row = {
        "type": "scatter",
        "mode": "lines",
        "showlegend": False,
        "hoverinfo": "skip",
        "line": {"color": COLORS["enqueued"]},
    }
    traces = [lines | {"x": [x for pair in ends for x in pair], "y": [place for place in places for _ in range(3)]}]
    for point, (symbol, color) in _MARKS.items():
        values = [row[f"{point}_seconds"] for row in rows]
        marker = {"color": color, "size": 10, "symbol": symbol}
        text = [f"{point} {label}: {shown_seconds(value)}" for label, value in zip(labels, values, strict=True)]
        traces.append(
            {"type": "scatter", "mode": "markers", "name": point, "y": places, "marker": marker}
            | {"x": [_drawn(value) for value in values], "text": text, "hoverinfo": "text"}
        )
    slowest = max(rows, key=lambda row: row["p95_seconds"])
    ticks = _ticks(min(_drawn(row["p50_seconds"]) for row in rows), max(_drawn(row["p99_seconds"]) for row in rows))
    few = ticks[::2] if len(ticks) > 3 else ticks
    title = {"wait": "Waiting time, due until claimed", "run": "Run time, claimed until completed"}[measure]
    alt = f"By job type, {len(rows)} shown; the highest 95th percentile is {shown_seconds(slowest['p95_seconds'])}, "
    layout = {
        "xaxis": {
            "type": "log",
            "title": {"text": "logarithmic scale", "standoff": 10},
            "tickvals": ticks,
            "ticktext": [shown_seconds(value) for value in ticks],
        },
        "yaxis": {
            "tickvals": places,
            "ticktext": labels,
            "range": [-0.5, len(rows) - 0.5],
            "zeroline": False,
            "automargin": True,
        },
        "height": 150 + 28 * len(rows),
        # The page applies these where the plot is narrow, so that names leave room for the times.
        "meta": {
            "xaxis": {"tickvals": few, "ticktext": [shown_seconds(value) for value in few]},
            "yaxis": {"ticktext": [_label(row["type_name"], 16) for row in rows]},
        },
    }
    return _figure(measure, title, alt + f"of {slowest['type_name']}.", traces, layout)


def _busy(contents: Contents) -> Figure | None:
    if not contents.busy:
        return None
    total: dict[str, float] = defaultdict(float)
    for row in contents.busy:
        total[row["type_name"]] += row["busy_workers"]
    largest = sorted(total, key=lambda name: (-total[name], name or ""))[:6]
    first, last = (end(row["bucket_start"] for row in contents.busy) for end in (min, max))
    # All of them: plotly makes bars as wide as the smallest distance between two.
    buckets = [first + n * contents.capacity_every for n in range((last - first) // contents.capacity_every + 1)]
    places = {name: place for place, name in enumerate(largest)}  # long names can have the same label
    series: dict[int, dict[datetime, float]] = defaultdict(lambda: defaultdict(float))
    for row in contents.busy:
        series[places.get(row["type_name"], len(largest))][row["bucket_start"]] += row["busy_workers"]
    x = [_instant(bucket) for bucket in buckets]
    traces = [
        {"type": "bar", "name": name, "x": x, "y": [round(series[place][bucket], 4) for bucket in buckets]}
        | {"marker": {"color": _SERIES[place]}}
        | _period(contents.capacity_every, x[0])
        for place, name in enumerate([*map(_label, largest), "others"])
        if place in series
    ]
    loads = {bucket: sum(of[bucket] for of in series.values()) for bucket in buckets}
    peak = max(buckets, key=lambda bucket: loads[bucket])
    alt = f"At most {loads[peak]:.2f} workers were busy on average, in the bucket of {_words(peak)}."
    layout = _STACKED | {"yaxis": {"title": {"text": "busy workers"}, "rangemode": "tozero"}}
    return _figure("busy", "Busy workers over time", alt, traces, layout)


def _figure(key: str, title: str, alt: str, traces: list[Row], layout: Row) -> Figure:
    base: Row = {
        "height": 320,
        "margin": {"l": 56, "r": 16, "t": 16, "b": 56},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "system-ui, sans-serif", "size": 13},
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        "bargap": 0.08,
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": COLORS["enqueued"]},
    }
    # `<` is escaped, as a closing tag in the text would end the script element.
    text = json.dumps({"data": traces, "layout": base | layout}, ensure_ascii=False, allow_nan=False)
    return Figure(key, title, alt, text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029"))


def _label(name: Any, most: int = 40) -> str:
    """Shorten a name to this many characters, and escape it for plotly, which interprets some HTML in texts."""
    text = "unknown" if name is None else str(name)
    return html.escape(text if len(text) <= most else f"{text[: most - 1]}…")


def _drawn(value: float) -> float:
    """Return a duration for a logarithmic axis, which has no zero."""
    return max(value, 0.001)


def _ticks(low: float, high: float) -> list[float]:
    """Return the durations that are labels of a logarithmic axis: three or more round ones, or the ends."""
    for round_ones in (_DECADES, _STEPS):
        found = [value for value in round_ones if 0.9 * low <= value <= 1.1 * high]
        if len(found) >= 3:
            return found
    return [low, high] if low < 0.9 * high else [high]


def _period(every: timedelta, first: str) -> Row:
    """Return the settings that center each bar in its bucket."""
    return {"xperiod": every / timedelta(milliseconds=1), "xperiod0": first, "xperiodalignment": "middle"}


def _instant(value: datetime) -> str:
    return value.strftime("%Y-%m-%dT%H:%M:%S")


def _words(value: datetime) -> str:
    return value.strftime("%Y-%m-%d %H:%M UTC")


def shown_seconds(value: float | None) -> str:
    """Return a duration as text in a fitting unit, on one line; a dash for None."""
    if value is None:
        return "-"
    for limit, unit, name in _UNITS:
        if value < limit:
            return f"{value / unit:.3g}\u00a0{name}"
    return f"{value / 86_400:,.3g}\u00a0d" if value < 86_400 * 999 else f"{value / 86_400:,.0f}\u00a0d"

"""Places of lines over time, which the templates draw as SVG: read without scripts, with values under the pointer. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import floor, log10
from typing import Any, Final, NamedTuple

from sa_jobqueue.display.printable import printable
from sa_jobqueue.display.printable import span as in_words

_WIDTH: Final = 640
_HEIGHT: Final = 180
_LEFT: Final = 52
_RIGHT: Final = 22
_TOP: Final = 20
_BOTTOM: Final = 158
_ROWS: Final = 4
_LABEL: Final = 24
"""Maximum number of characters of the label of a mark; its title has all."""
_LETTER: Final = 6
"""Width of a character of such a label."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that happened, drawn as a vertical line."""

    at: datetime
    text: str


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a chart. `value`: of a point; None leaves a gap."""

    label: str
    value: Callable[[Any], float | None]


class Label(NamedTuple):
    """Text beside an axis, or above a mark. `place`: its distance from the left or the top."""

    place: float
    text: str


class MarkLine(NamedTuple):
    """A vertical line of a chart. `label`: None where there is no room for it."""

    x: float
    title: str
    label: Label | None


class Reading(NamedTuple):
    """The values of one time, shown under the pointer. `x`: left edge of the area."""

    at: datetime
    x: float
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A chart as the templates draw it, in units of the view box; `paths` are those of its lines."""

    name: str
    title: str
    jobs: str
    step: timedelta
    since: str
    rows: Sequence[Label]
    times: Sequence[Label]
    marks: Sequence[MarkLine]
    labels: Sequence[str]
    paths: Sequence[str]
    readings: Sequence[Reading]
    reading_width: float
    latest: str
    width: int = _WIDTH
    height: int = _HEIGHT
    plot_left: int = _LEFT
    plot_right: int = _WIDTH - _RIGHT
    plot_top: int = _TOP
    plot_bottom: int = _BOTTOM


def chart(
    name: str,
    title: str,
    points: Sequence[Any],
    lines: Sequence[Line],
    *,
    since: datetime,
    step: timedelta,
    count: int,
    marks: Iterable[Mark] = (),
    is_time: bool = False,
    jobs: str = "",
) -> Chart:
    """Return a chart of `count` points that are `step` apart, each with its start as `key`; a missing one is a gap.

    `name`: id of the chart on its page. `is_time`: whether values are numbers of seconds. `jobs`: URL of a list
    of jobs, which the script opens for the point that is clicked.
    """
    values = [[line.value(point) for point in points] for line in lines]
    unit = clock if is_time else amount
    top = _nice(max((value for line in values for value in line if value is not None), default=0.0), is_time=is_time)
    width = (_WIDTH - _LEFT - _RIGHT) / max(count - 1, 1)

    def x(at: datetime) -> float:
        return _LEFT + width * ((at - since) / step)

    def y(value: float) -> float:
        return _BOTTOM - (_BOTTOM - _TOP) * value / top

    def written(values: Iterable[float | None]) -> str:
        pairs = zip(lines, values, strict=True)
        return ", ".join(f"{line.label} {unit(value)}" for line, value in pairs if value is not None)

    heights = [top * row / _ROWS for row in range(_ROWS + 1)]
    times = [since + step * round((count - 1) * part / 6) for part in range(7)]
    readings = (
        Reading(point.key, x(point.key) - width / 2, f"{_minute(point.key)} UTC: {written(of_point) or 'no job ended'}")
        for point, of_point in zip(points, zip(*values, strict=True), strict=True)
    )
    return Chart(
        name=name,
        title=title,
        jobs=jobs,
        step=step,
        since=f"{_minute(since)} UTC",
        rows=[Label(y(height), unit(height)) for height in heights],
        times=[Label(x(at), _minute(at)) for at in times],
        marks=list(_mark_lines((mark for mark in marks if mark.at >= since), x)),
        labels=[line.label for line in lines],
        paths=[_path(points, line_values, step, x, y) for line_values in values],
        readings=list(readings),
        reading_width=width,
        latest=written(
            next((value for value in reversed(line_values) if value is not None), None) for line_values in values
        ),
    )


def _minute(at: datetime) -> str:
    return f"{at.astimezone(UTC):%H:%M}"


def _mark_lines(marks: Iterable[Mark], x: Callable[[datetime], float]) -> Iterator[MarkLine]:
    """Yield marks from left to right, with a label where the one before ends."""
    labelled_to = float(_LEFT)
    for mark in sorted(marks, key=lambda mark: mark.at):
        place, title = min(x(mark.at), _WIDTH - _RIGHT), printable(mark.text)
        text = title.partition(" ")[2]
        if len(title) > _LABEL + 6:
            text = f"{text[: _LABEL - 1]}…"
        start = min(place, _WIDTH - _RIGHT - _LETTER * len(text))
        if start < labelled_to:
            yield MarkLine(place, title, None)
            continue
        labelled_to = start + _LETTER * len(text) + 8
        yield MarkLine(place, title, Label(start, text))


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a bar, between two times. `kind`: its class in the style sheet, such as `run`."""

    kind: str
    label: str
    start: datetime
    end: datetime

    @property
    def length(self) -> float:
        """Its number of seconds."""
        return max((self.end - self.start).total_seconds(), 0.0)


class SpanBox(NamedTuple):
    """A span as a rectangle of a bar."""

    kind: str
    x: float
    y: int
    width: float
    height: int
    title: str


class Bar(NamedTuple):
    """A bar as the templates draw it. `sums`: seconds of each kind. `label`: all spans in words."""

    boxes: Sequence[SpanBox]
    sums: Mapping[str, float]
    label: str


def bar(spans: Sequence[Span], inside: Iterable[Span] = ()) -> Bar:
    """Return spans as one bar, each wide enough to be seen; those `inside` below it; and a key with the sum of each kind."""
    least = max(sum(span.length for span in spans), 0.001) / 100
    scale = 1000 / (100 + len(spans)) / least
    sums: dict[str, float] = {}
    edges = [(span.start, 0.0) for span in spans[:1]]
    for span in spans:
        sums[span.kind] = sums.get(span.kind, 0.0) + span.length
        edges.append((span.end, edges[-1][1] + (span.length + least) * scale))

    def x(at: datetime) -> float:
        for (start, start_x), (end, end_x) in itertools.pairwise(edges):
            if start <= at <= end:
                return start_x + (end_x - start_x) * ((at - start) / (end - start) if end > start else 0.0)
        return 0.0 if at < edges[0][0] else 1000.0

    placed = [(span, start_x, end_x, 0, 26) for span, (_, start_x), (_, end_x) in zip(spans, edges, edges[1:], strict=False)]
    placed += [(span, x(span.start), max(x(span.end), x(span.start) + 2), 29, 9) for span in inside if spans]
    boxes = [
        SpanBox(span.kind, start_x, top, end_x - start_x, height, f"{printable(span.label)}: {seconds(span.length)}")
        for span, start_x, end_x, top, height in placed
    ]
    label = ", ".join(f"{span.kind} {seconds(span.length)} until {span.label}" for span in spans)
    return Bar(boxes, sums, printable(label))


def seconds(value: float) -> str:
    """Write a number of seconds as a duration."""
    if value >= 60:
        return in_words(timedelta(seconds=value))
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.3g} s"


def clock(value: float) -> str:
    """Write a number of seconds for an axis: `250 ms`, `15 s`, `1:40`, `2:30 h`, `3 d`."""
    if value < 60:
        return seconds(value)
    large, small = divmod(round(value / 60 if value >= 3600 else value), 60)
    return f"{value / 86400:.3g} d" if value >= 172800 else f"{large}:{small:02}{' h' if value >= 3600 else ''}"


def amount(value: float) -> str:
    """Write a number for an axis: `0.5`, `1,500`, `80k`, `1.2M`."""
    size, sign = next((pair for pair in ((1e6, "M"), (1e4, "k")) if value >= pair[0]), (1.0, ""))
    return f"{value / (1000 if sign == 'k' else size):,.4g}{sign}"


def _path(
    points: Sequence[Any],
    values: Sequence[float | None],
    step: timedelta,
    x: Callable[[datetime], float],
    y: Callable[[float], float],
) -> str:
    """Return the path of a line. A single point is a short line, so that it is seen."""
    commands, before = [], None
    for point, value in zip(points, values, strict=True):
        if value is None:
            continue
        place = f"{x(point.key):.1f} {y(value):.1f}"
        commands.append(f"L{place}" if before is not None and point.key - before <= step else f"M{place}h1")
        before = point.key
    return "".join(commands)


_TIMES: Final = (2, 4, 8, 20, 40, 60, 120, 240, 480, 1200, 2400, 3600, 7200, 14400, 28800, 57600, 86400)
"""Numbers of seconds that four lines divide well."""


def _nice(value: float, *, is_time: bool = False) -> float:
    """Return a number at or above a value that four lines divide well."""
    if value <= 0:
        return 1.0
    if is_time and 1 < value <= _TIMES[-1]:
        return next(time for time in _TIMES if time >= value)
    scale = 10.0 ** floor(log10(value))
    return next(multiple for multiple in (1.0, 2.0, 4.0, 8.0, 10.0) if multiple * scale >= value) * scale

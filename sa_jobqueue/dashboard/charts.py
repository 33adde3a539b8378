"""Lines over time as SVG: read without scripts, with the values of each time under the pointer."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import floor, log10
from typing import Any, Final

from markupsafe import Markup

from sa_jobqueue.display.printable import printable
from sa_jobqueue.display.printable import span as in_words

_WIDTH: Final = 640
_HEIGHT: Final = 180
_LEFT: Final = 52
_RIGHT: Final = 22
_TOP: Final = 20
_BOTTOM: Final = 158
_LINES: Final = 4
_LABEL: Final = 24
"""Maximum number of characters of the label of a mark; its title has all."""


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
) -> Markup:
    """Return a chart of `count` points that are `step` apart, each with its start as `key`; a missing one is a gap.

    `name`: id of the chart on its page. `is_time`: whether values are numbers of seconds. `jobs`: URL of a list
    of jobs, which the script opens for the point that is clicked.
    """
    values = [[line.value(point) for point in points] for line in lines]
    unit, highest = (
        clock if is_time else amount,
        max((value for line in values for value in line if value is not None), default=0.0),
    )
    top = _nice(highest, is_time=is_time)
    width = (_WIDTH - _LEFT - _RIGHT) / max(count - 1, 1)

    def x(at: datetime) -> float:
        return _LEFT + width * ((at - since) / step)

    def y(value: float) -> float:
        return _BOTTOM - (_BOTTOM - _TOP) * value / top

    parts = [
        Markup('<path class="grid" d="M{0} {1:.1f}H{2}"/><text class="y" x="{3}" y="{4:.1f}">{5}</text>').format(
            _LEFT, y(top * at / _LINES), _WIDTH - _RIGHT, _LEFT - 6, y(top * at / _LINES) + 4, unit(top * at / _LINES)
        )
        for at in range(_LINES + 1)
    ]
    parts += [
        Markup('<text class="x" x="{:.1f}" y="{}">{}</text>').format(
            x(at), _BOTTOM + 16, at.astimezone(UTC).strftime("%H:%M")
        )
        for at in (since + step * round((count - 1) * part / 6) for part in range(7))
    ]
    labelled_to = float(_LEFT)
    for mark in sorted((mark for mark in marks if mark.at >= since), key=lambda mark: mark.at):
        place, words = min(x(mark.at), _WIDTH - _RIGHT), printable(mark.text)
        text = words.partition(" ")[2] if len(words) <= _LABEL + 6 else f"{words.partition(' ')[2][: _LABEL - 1]}…"
        start = min(place, _WIDTH - _RIGHT - 6 * len(text))
        label = Markup('<text x="{:.1f}" y="{}">{}</text>').format(start, _TOP - 4, text) if start >= labelled_to else ""
        labelled_to = start + 6 * len(text) + 8 if label else labelled_to
        drawn = Markup('<g class="mark"><path d="M{0:.1f} {1}V{2}"/>{3}<title>{4}</title></g>')
        parts.append(drawn.format(place, _TOP, _BOTTOM, label, words))
    for number, line_values in enumerate(values, 1):
        parts.append(Markup('<path class="line line-{}" d="{}"/>').format(number, _path(points, line_values, step, x, y)))
    for at, point in enumerate(points):
        readings = ", ".join(
            f"{line.label} {unit(value)}"
            for line, line_values in zip(lines, values, strict=True)
            if (value := line_values[at]) is not None
        )
        when = point.key.astimezone(UTC).strftime("%H:%M UTC")
        drawn = Markup(
            '<g class="at" data-at="{0:.0f}"><rect x="{1:.1f}" y="{2}" width="{3:.1f}" height="{4}"/>'
            "<title>{5}: {6}</title></g>"
        )
        place = x(point.key) - width / 2
        readings = readings or "no job ended"
        parts.append(drawn.format(point.key.timestamp(), place, _TOP, width, _BOTTOM - _TOP, when, readings))
    keys = Markup(" ").join(
        Markup('<span class="key key-{}">{}</span>').format(number, line.label) for number, line in enumerate(lines, 1)
    )
    latest = ", ".join(
        f"{line.label} {unit(measured[-1])}"
        for line, line_values in zip(lines, values, strict=True)
        if (measured := [value for value in line_values if value is not None])
    )
    return Markup(
        '<figure id="chart-{0}"{1}><figcaption>{2} {3}</figcaption><svg class="chart" viewBox="0 0 {4} {5}" role="img"'
        ' aria-label="{2} since {6}. Last: {7}">{8}</svg></figure>'
    ).format(
        name,
        Markup(' data-jobs="{}" data-step="{:.0f}"').format(jobs, step.total_seconds()) if jobs else "",
        title,
        keys,
        _WIDTH,
        _HEIGHT,
        f"{since.astimezone(UTC):%H:%M UTC}",
        latest or "none",
        Markup().join(parts),
    )


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


def bar(spans: Sequence[Span], inside: Iterable[Span] = ()) -> Markup:
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

    drawn = [(span, start_x, end_x, 0, 26) for span, (_, start_x), (_, end_x) in zip(spans, edges, edges[1:], strict=False)]
    drawn += [(span, x(span.start), max(x(span.end), x(span.start) + 2), 29, 9) for span in inside if spans]
    parts = [
        Markup('<rect class="{}" x="{:.1f}" y="{}" width="{:.1f}" height="{}"><title>{}: {}</title></rect>').format(
            span.kind, start_x, top, end_x - start_x, height, printable(span.label), seconds(span.length)
        )
        for span, start_x, end_x, top, height in drawn
    ]
    keys = [
        Markup('<span class="key {}">{} {}</span>').format(kind, "failed run" if "bad" in kind else kind, seconds(length))
        for kind, length in sums.items()
    ]
    return Markup(
        '<figure class="bar-of-times"><svg viewBox="0 0 1000 38" preserveAspectRatio="none" role="img"'
        ' aria-label="{}">{}</svg><figcaption>{}</figcaption></figure>'
    ).format(
        printable(", ".join(f"{span.kind} {seconds(span.length)} until {span.label}" for span in spans)),
        Markup().join(parts),
        Markup(" ").join(keys),
    )


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

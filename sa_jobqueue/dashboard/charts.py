"""Lines over time as SVG: read without scripts, with the values of each time under the pointer."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import ceil, floor, log10
from typing import Any, Final

from markupsafe import Markup

from sa_jobqueue.display.printable import printable

_WIDTH: Final = 640
_HEIGHT: Final = 180
_LEFT: Final = 52
_RIGHT: Final = 22
_TOP: Final = 10
_BOTTOM: Final = 158
_LINES: Final = 4


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
    unit: Callable[[float], str] = lambda value: f"{value:,.4g}",
) -> Markup:
    """Return a chart of `count` points that are `step` apart, each with its start as `key`; a missing one is a gap.

    `name`: id of the chart on its page. `unit`: writes a value.
    """
    values = [[line.value(point) for point in points] for line in lines]
    top = _nice(max((value for line_values in values for value in line_values if value is not None), default=0.0))
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
    for mark in marks:
        if mark.at >= since:
            drawn = Markup('<g class="mark"><path d="M{0:.1f} {1}V{2}"/><title>{3}</title></g>')
            parts.append(drawn.format(min(x(mark.at), _WIDTH - _RIGHT), _TOP, _BOTTOM, printable(mark.text)))
    for number, line_values in enumerate(values, 1):
        parts.append(Markup('<path class="line line-{}" d="{}"/>').format(number, _path(points, line_values, step, x, y)))
    for at, point in enumerate(points):
        readings = ", ".join(
            f"{line.label} {unit(value)}"
            for line, line_values in zip(lines, values, strict=True)
            if (value := line_values[at]) is not None
        )
        when = point.key.astimezone(UTC).strftime("%H:%M UTC")
        drawn = Markup('<g class="at"><rect x="{0:.1f}" y="{1}" width="{2:.1f}" height="{3}"/><title>{4}: {5}</title></g>')
        parts.append(drawn.format(x(point.key) - width / 2, _TOP, width, _BOTTOM - _TOP, when, readings or "no job ended"))
    keys = Markup(" ").join(
        Markup('<span class="key key-{}">{}</span>').format(number, line.label) for number, line in enumerate(lines, 1)
    )
    latest = ", ".join(
        f"{line.label} {unit(measured[-1])}"
        for line, line_values in zip(lines, values, strict=True)
        if (measured := [value for value in line_values if value is not None])
    )
    return Markup(
        '<figure id="chart-{0}"><figcaption>{1} {2}</figcaption><svg class="chart" viewBox="0 0 {3} {4}" role="img"'
        ' aria-label="{1} since {5}. Last: {6}">{7}</svg></figure>'
    ).format(
        name, title, keys, _WIDTH, _HEIGHT, f"{since.astimezone(UTC):%H:%M UTC}", latest or "none", Markup().join(parts)
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
    if value < 1:
        return f"{value * 1000:.0f} ms"
    size, unit = next((pair for pair in ((86400, "d"), (3600, "h"), (60, "min")) if value >= pair[0]), (1, "s"))
    return f"{value / size:.3g} {unit}"


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


def _nice(value: float) -> float:
    """Return a number at or above a value that four lines divide well."""
    if value <= 0:
        return 1.0
    unit = 10.0 ** floor(log10(value))
    return float(next((multiple for multiple in (1, 2, 4, 8) if multiple * unit >= value), ceil(value / unit)) * unit)

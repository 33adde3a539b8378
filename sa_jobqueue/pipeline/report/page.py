"""Render the page from its template."""

from __future__ import annotations

from dataclasses import fields, replace
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any, Final

from sa_jobqueue.display.printable import printable
from sa_jobqueue.pipeline.report.charts import charts, shown_seconds, sparkline
from sa_jobqueue.pipeline.report.contents import MAX_ROWS, Contents, Row

_TEMPLATES: Final = files("sa_jobqueue.pipeline.report") / "templates"


def render(contents: Contents) -> str:
    """Return a report as one self-contained HTML document.

    Values from the history are escaped, including control and bidirectional characters. The page has no scripts, and its
    content security policy blocks them, and all network requests.
    """
    from jinja2 import Environment, StrictUndefined

    contents = replace(contents, **{one.name: _printable(getattr(contents, one.name)) for one in fields(contents)})
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {
        "instant": _instant,
        "lasting": shown_seconds,
        "number": _number,
        "percent": _percent,
        "short": _short,
        "small": _small,
    }
    template = environment.from_string(_text("report.html.j2"))
    return template.render(
        it=contents,
        charts=charts(contents),
        style=_text("report.css"),
        types=_by_type(contents.latency),
        sparkline=sparkline,
        most=MAX_ROWS,
    )


def _printable(value: Any) -> Any:
    match value:
        case str():
            return printable(value, newline="\n")
        case dict():
            return {_printable(key): _printable(one) for key, one in value.items()}
        case list() | tuple():
            return type(value)(_printable(one) for one in value)
    return value


def _text(name: str) -> str:
    return (_TEMPLATES / name).read_text(encoding="utf-8")


def _by_type(latency: list[Row]) -> list[Row]:
    """Return one row per type, with its `wait`, `run` and `total`."""
    found: dict[Any, Row] = {}
    for row in latency:
        found.setdefault(row["type_name"], {"type_name": row["type_name"]})[row["measure"]] = row
    return list(found.values())


def _instant(value: datetime | None) -> str:
    return "-" if value is None else value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _small(value: float | None) -> str:
    """Return a number that may be far below 1, with three digits."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}" if value >= 0.001 else "<0.001" if value else "0"


def _percent(value: float | None) -> str:
    if value is None:
        return "-"
    return "<0.1 %" if 0 < value < 0.001 else f"{value * 100:.1f} %"


def _short(value: str | None, length: int = 160) -> str:
    line = next(iter((value or "").strip().splitlines()), "")
    return line if len(line) <= length else f"{line[: length - 1]}…"

"""Render the page from its template, with a content security policy of script hashes."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from dataclasses import fields, replace
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any, Final

from sa_jobqueue.display.printable import printable
from sa_jobqueue.pipeline.report.charts import figures, shown_seconds, sparkline
from sa_jobqueue.pipeline.report.contents import MAX_ROWS, Contents, Row

_TEMPLATES: Final = files("sa_jobqueue.pipeline.report") / "templates"


def render(contents: Contents) -> str:
    """Return a report as one self-contained HTML document of about 5 MB, which works offline.

    Values from the history are escaped, including control and bidirectional characters. The page's content security policy
    blocks all scripts except its own two, and all network requests.
    """
    from jinja2 import Environment, StrictUndefined
    from plotly.offline import get_plotlyjs

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
    plots = {} if contents.is_empty else figures(contents)
    scripts = [get_plotlyjs(), _text("report.js")] if plots else []
    template = environment.from_string(_text("report.html.j2"))
    return template.render(
        it=contents,
        plots=plots,
        # Not escaped: they are part of this package, and escaping would change the scripts' hashes.
        style=_safe(_text("report.css")),
        scripts=[_safe(script) for script in scripts],
        policy=_policy(scripts),
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


def _safe(text: str) -> Any:
    from markupsafe import Markup

    return Markup(text)  # noqa: S704 - a file of this package, or plotly's


def _policy(scripts: Iterable[str]) -> str:
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{one}'" for one in hashes) or "'none'"
    parts = {
        "default-src": "'none'",
        "script-src": allowed,
        "style-src": "'unsafe-inline'",  # plotly positions texts by styles; styles cannot send requests here
        "img-src": "data: blob:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in parts.items())


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

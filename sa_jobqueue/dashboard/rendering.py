"""Templates: every value is escaped and made printable, links carry names of rows as parameters only."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from enum import Enum
from functools import cache
from importlib.resources import files
from typing import Any, Final
from urllib.parse import quote, urlencode
from uuid import UUID

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from sa_jobqueue.dashboard.charts import seconds
from sa_jobqueue.display.durations import write_duration
from sa_jobqueue.display.printable import byte_size, printable, printable_json, span

SHOWN: Final = 20_000
"""Maximum number of characters of a payload or traceback on a page; the rest is downloaded."""
STATIC: Final = files("sa_jobqueue.dashboard") / "static"
_KINDS: Final = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


@cache
def environment() -> Environment:
    """Return the environment of the templates."""
    templates = Environment(
        loader=PackageLoader("sa_jobqueue.dashboard"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=displayed,
    )
    templates.filters |= {
        "ago": _ago,
        "brief": lambda value: "-" if value is None else seconds(value.total_seconds()),
        "clipped": _clipped,
        "command": _command,
        "bytes": byte_size,
        "count": lambda value: f"{value:,}",
        "entered": _entered,
        "exact": _exact,
        "instant": _instant,
        "json": as_json,
        "lines": _lines,
        "percent": lambda value: f"{value:.0%}",
        "place": "{:.1f}".format,
        "rate": lambda value: f"{value:,.1f}",
        "seconds": seconds,
        "short": short,
        "span": span,
        "with": lambda document, more: document | more,
        "words": lambda value: str(value).replace("_", " "),
    }
    # Not imported by the templates: a block that is rendered alone does not see what its template imports.
    templates.globals["ui"] = templates.get_template("macros.html").module
    return templates


def render(name: str, variables: Mapping[str, Any], *, block: str | None = None) -> str:
    """Return a template as HTML, or one block of it."""
    template = environment().get_template(name)
    if block is None:
        return template.render(variables)
    context = template.new_context(dict(variables))
    return environment().concat(template.blocks[block](context))


def displayed(value: Any) -> Any:
    """Return a value as a template shows it: text on one line with control characters escaped, times in UTC."""
    if hasattr(value, "__html__"):
        return value
    match value:
        case None:
            return "-"
        case datetime():
            exact = value.astimezone(UTC).isoformat().replace("+00:00", "Z")
            return Markup('<time datetime="{}">{}</time>').format(exact, _instant(value))
        case timedelta():
            return span(value)
        case Enum():
            return printable(str(value.value))
        case str():
            return printable(value)
        case UUID():
            return str(value)
    return value


def _instant(value: datetime) -> str:
    return value.astimezone(UTC).isoformat(sep=" ", timespec="seconds").replace("+00:00", " UTC")


def as_json(document: Any) -> str:
    """Return a document as indented JSON."""
    return printable_json(document, default=str, indent=2)


def _clipped(text: str) -> Markup:
    """Return text of several lines, at most `SHOWN` characters of it."""
    beginning = escape(printable(text[:SHOWN], newline="\n"))
    more = len(text) - SHOWN
    return beginning + (Markup("\n… {} more characters").format(f"{more:,}") if more > 0 else Markup())


_COMMAND: Final = re.compile(r"(.*(?:: |\bSee ))((?:sa-jobqueue|SELECT|ALTER|UPDATE|ROLLBACK|VACUUM|REINDEX|DROP) .+?)\.?")


def _command(advice: str) -> tuple[str, str]:
    """Return an advice without the command or statement that it ends with, and that; empty if it ends with none."""
    match = _COMMAND.fullmatch(advice)
    if match is None or re.search(r"[.,;] [A-Za-z]", match[2].replace("SELECT", "")):
        return advice, ""
    return match[1].removesuffix(" "), match[2]


def _lines(text: str) -> Markup:
    return escape(printable(text, newline="\n"))


def _exact(value: Any) -> Markup:
    """Return a value for a form as JSON in ASCII: browsers change line ends in the values of forms."""
    return escape(json.dumps(value, default=str))


def _entered(value: Any) -> Any:
    """Return a value as text for a form field; of a list its first one, empty for None."""
    if isinstance(value, list):
        value = value[0] if value else None
    return "" if value is None else write_duration(value) if isinstance(value, timedelta) else value


def short(job_id: Any) -> str:
    """Return an id for a heading: its first and last four characters, or all of a short one."""
    text = str(job_id)
    return text if len(text) <= 12 else f"{text[:4]}…{text[-4:]}"


def _ago(value: timedelta) -> str:
    return f"{span(value)} ago"


def brief(document: Any) -> str:
    """Return the first plain values of a payload on one line, ids first, at most 60 characters: `order_id 7278, to ann`."""
    fields = document.items() if isinstance(document, dict) else [("", document)]
    plain = [(name, value) for name, value in fields if not (value is None or isinstance(value, dict | list))]
    plain.sort(key=lambda field: not field[0].endswith("id"))
    texts = [f"{name} {value if isinstance(value, str) else json.dumps(value)}".strip() for name, value in plain[:3]]
    text = ", ".join(texts)
    return text if len(text) <= 60 else f"{text[:59]}…"


def query(parameters: Iterable[tuple[str, Any]]) -> str:
    """Return a query string; lists repeat their name, None and empty values are left out."""
    pairs: list[tuple[str, str]] = []
    for name, value in parameters:
        values = value if isinstance(value, list | tuple) else [value]
        pairs += [(name, _plain(element)) for element in values if element not in (None, "")]
    return f"?{urlencode(pairs, quote_via=quote)}" if pairs else ""


def _plain(value: Any) -> str:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    return str(value.value) if isinstance(value, Enum) else str(value)


class Assets:
    """The static files, each under a name that contains a hash of its content and may therefore be cached forever."""

    def __init__(self) -> None:
        self.contents: dict[str, tuple[bytes, str]] = {}
        """By the name in a URL: content and media type."""
        self.names: dict[str, str] = {}
        """The name in a URL by the name of the file."""
        for folder in (STATIC, STATIC / "vendored"):
            for file in folder.iterdir():
                stem, _, kind = file.name.rpartition(".")
                if kind in _KINDS:
                    content = file.read_bytes()
                    name = f"{stem}.{hashlib.sha256(content).hexdigest()[:16]}.{kind}"
                    self.contents[name] = (content, _KINDS[kind])
                    self.names[file.name] = name


@cache
def version() -> str:
    """Return a hash of the static files and the templates: another one means that an open page is of another release."""
    templates = files("sa_jobqueue.dashboard") / "templates"
    digest = hashlib.sha256(" ".join(sorted(assets().names.values())).encode())
    for file in sorted(templates.iterdir(), key=lambda template: template.name):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


@cache
def assets() -> Assets:
    """Return the static files, read once."""
    return Assets()

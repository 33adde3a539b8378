r"""Text that people read, on terminals, in logs and on pages: escaped control characters, and durations.

Names, errors and payloads are written by other programs. A control character among them moves a cursor or retitles
a window (ESC, C1), a line separator makes one log record look like two, a bidirectional control shows `gpj.exe` for
`exe.jpg`. All text from the database is shown through this module; JSON keeps the characters, as JSON escapes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

# C0, DEL, C1; bidirectional controls (U+061C, U+200E/F, U+202A-E, U+2066-9); line separators (U+2028/9); lone surrogates.
# Also characters without width or meaning on a terminal: U+200B, U+2060-4, U+206A-F, U+FEFF, U+FFF9-B and tags.
_UNSAFE: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2064\u2066-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)


def printable(text: str, *, newline: str = r"\n") -> str:
    r"""Return a text with each unsafe character as a Python escape: `\x1b`, `\u202e`.

    `newline`: the replacement of a newline. By default its escape, so the text stays one line; `"\n"` keeps the lines of
    trusted text, `"\n  "` indents the lines of a traceback, so that none looks like a line of the output itself.
    """
    if text.isprintable():
        return text
    return _UNSAFE.sub(lambda match: newline if match[0] == "\n" else _escape(match[0]), text)


def message_of(error: BaseException) -> str:
    """Return the message of an error, whose class may be the application's and fail at that."""
    try:
        return str(error)
    except BaseException as fault:
        return f"<its message could not be made: {type(fault).__name__}>"


def printable_json(document: Any, *, default: Callable[[Any], Any] | None = None, indent: int | None = None) -> str:
    r"""Return a document as JSON whose strings have unsafe characters as `\u202e`; every other character is unchanged."""
    text = json.dumps(document, default=default, indent=indent, ensure_ascii=False)
    # A newline can only come from the encoder, between values: in strings it is already escaped.
    return _UNSAFE.sub(lambda match: match[0] if match[0] == "\n" else json.dumps(match[0])[1:-1], text)


def span(duration: timedelta) -> str:
    """Return a duration in its two largest units, such as `2 h 5 min`."""
    seconds = max(duration.total_seconds(), 0.0)
    if seconds < 10:
        return f"{seconds:.1f} s"
    parts: list[str] = []
    seconds_left = round(seconds)
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        if seconds_left >= size and len(parts) < 2:
            parts.append(f"{seconds_left // size} {unit}")
            seconds_left %= size
        elif parts:
            break
    return " ".join(parts)


_LITERAL: Final = re.compile(r"'(?:[^']|'')*'?|\$(\w*)\$.*?(?:\$\1\$|$)|(?<![$])\b\d[\d.]*\b", re.DOTALL)
_LONGEST_LINE: Final = 120


def shortened(query: str | None) -> str | None:
    """Return a query on one line without its literals, which may be private or a password. Pure."""
    if query is None or query == "<insufficient privilege>":
        return None
    plain = " ".join(_LITERAL.sub("?", query).split())
    return plain if len(plain) <= _LONGEST_LINE else f"{plain[: _LONGEST_LINE - 1]}…"


def _escape(char: str) -> str:
    return repr(char)[1:-1]


def byte_size(size: float) -> str:
    """Return a number of bytes with a unit, as pg_size_pretty does."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1024:
            return f"{size:,.0f} {unit}"
        size /= 1024
    return f"{size:,.1f} TB"

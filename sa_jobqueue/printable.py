r"""Text as it may be shown in a terminal, a text log or a page: what would steer a terminal or forge a line is escaped.

Names, errors and payloads come from other people's transactions. A control character among them moves a cursor or retitles
a window (ESC, C1), a line separator makes one log record look like two, a bidirectional control shows `gpj.exe` for
`exe.jpg`. Whatever shows text of the database passes it through here; JSON keeps the characters, in its own escapes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Final

# C0, DEL, C1; bidirectional controls (U+061C, U+200E/F, U+202A-E, U+2066-9); line separators (U+2028/9); lone surrogates.
# Also what has no width and means nothing on a terminal: U+200B, U+2060-4, U+206A-F, U+FEFF, U+FFF9-B and tags.
_UNSAFE: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2064\u2066-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)


def printable(text: str, *, newline: str = r"\n") -> str:
    r"""Return a text with each unsafe character escaped as Python writes it: `\x1b`, `\u202e`.

    `newline`: what stands for a newline. By default its escape, so the text stays one line; `"\n"` keeps the lines of a text
    that is ours, `"\n  "` indents those of a traceback, so that none can be taken for a line of ours.
    """
    if text.isprintable():
        return text
    return _UNSAFE.sub(lambda found: newline if found[0] == "\n" else _escape(found[0]), text)


def printable_json(document: Any, *, default: Callable[[Any], Any] | None = None, indent: int | None = None) -> str:
    r"""Return a document as JSON whose strings have unsafe characters as `\u202e`; every other letter as it is."""
    text = json.dumps(document, default=default, indent=indent, ensure_ascii=False)
    # A newline can only be the encoder's own, between values: within strings it is escaped already.
    return _UNSAFE.sub(lambda found: found[0] if found[0] == "\n" else json.dumps(found[0])[1:-1], text)


def _escape(char: str) -> str:
    return repr(char)[1:-1]

"""Text for a terminal: what could steer it is escaped, all other text stays as it is."""

from __future__ import annotations

import json

import pytest

from sa_jobqueue.display.printable import printable, printable_json


@pytest.mark.parametrize(
    "text", ["", "Zürich 日本 \xa0€", "family \U0001f469\u200d\U0001f4bb", "\u0646\u0627\u200c\u0645", r"C:\x1b [red]"]
)
def test_printable_text_of_any_language_is_unchanged(text: str) -> None:
    assert printable(text) == text


def test_control_characters_and_line_separators_are_escaped() -> None:
    assert printable("a\x1b[2J\x9b\x7f\u202e\u2028\x85\ud800\r\n\t") == r"a\x1b[2J\x9b\x7f\u202e\u2028\x85\ud800\r\n\t"
    every = [chr(code) for code in (*range(0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x61C)]
    assert printable("".join(every)).isprintable()


def test_newlines_are_kept_or_indented_on_request() -> None:
    assert printable("a\n\x1bb", newline="\n") == "a\n\\x1bb"
    assert printable("a\nb", newline="\n  ") == "a\n  b"


def test_json_output_uses_json_escapes() -> None:
    document = {"a\x7f": ["\x1b\n\u202e\ud800\U000e0041 é"]}
    text = printable_json(document, indent=2)
    assert json.loads(text) == document
    assert "é" in text
    assert text.replace("\n", "").isprintable()
    assert "\n" not in printable_json(document)

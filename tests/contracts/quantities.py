"""Find quantities of speed, time and connections in the text of pages, in digits and in words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

FENCE: Final = re.compile(r"^ *```.*?^ *```|<!--.*?-->", re.MULTILINE | re.DOTALL)
BLOCK: Final = re.compile(r"\n\s*\n|\n(?=\||\s*- |\d+\. |#)")
"""Between paragraphs, headings, items of a list and rows of a table."""
CODE: Final = re.compile(r"`[^`\n]*`|\]\([^)\s]*\)")
SENTENCE: Final = re.compile(r"(?<=[.?!:]) ")
NUMBER: Final = (
    r"(?:(?<![\d:])\d[\d,.]*|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|thirteen|fourteen|fifteen|sixteen"
    r"|seventeen|eighteen|nineteen|twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety|several"
    r"|a (?:few|couple of|dozen|hundred|thousand|million)|(?:tens|dozens|hundreds|thousands|millions) of)"
)
TIME: Final = r"(?:(?:nano|micro|milli)?seconds?|minutes?|hours?|days?|weeks?|months?|years?)"
FRACTION: Final = (
    r"(?:half|(?:a|one|two|three|four)[ -](?:third|quarter|fifth|sixth|eighth|tenth|twentieth|hundredth|thousandth)s?)"
)
COMPARED: Final = (
    r"(?:as|the|that|of|what|its|their|faster|slower|quicker|cheaper|longer|shorter|larger|smaller|higher|lower|more|less"
    r"|fewer|better)"
)
ORDINAL: Final = (
    r"(?! (?!to|for|or|and|per|each|later|after|before|on|at|with|by|if|when|while|until|between|is|are|in|of)[a-z]+)"
)
"""After "a second": what makes it an ordinal does not follow."""
BEFORE: Final = (
    r"(?:about|within|after|takes?|costs?|than|every|in|for|under|below|nearly|almost|least|most|over|only|of|and|or)"
)
SPEED: Final = "|".join(
    [
        rf"\b{NUMBER} (?:\w+ ){{0,2}}(?:an?|per|each|every) (?:second|minute|hour|day)\b",
        rf"\b{NUMBER} ?(?:[kMG]i?B|jobs|rows|requests|calls)/(?:s|min|h)\b",
        rf"\b(?:{NUMBER}[ -]times|\d[\d.]* ?[x×]|twice|thrice|{FRACTION}) {COMPARED}\b",
        r"\b(?:\w+fold|doubles|halves|triples|quadruples|orders? of magnitude|by half|in half)\b",
        rf"\b{NUMBER} ?(?:%|per ?cent\b)",
    ]
)
DURATION: Final = "|".join(
    [
        r"\b\d[\d,.]* ?(?:ns|µs|us|ms|s|min|h|d)\b",
        rf"\b{NUMBER}(?: \w+)?[ -]{TIME}\b",
        rf"\b{BEFORE} an? {TIME}\b{ORDINAL}",
        rf"\b{FRACTION}(?: of)? an? {TIME}\b",
    ]
)
CONNECTIONS: Final = rf"\b{NUMBER} (?:\w+ )?connections?\b"
QUANTITIES: Final = re.compile("|".join([SPEED, DURATION, CONNECTIONS]), re.IGNORECASE)
SPEEDS: Final = re.compile(SPEED, re.IGNORECASE)


class Quantity(NamedTuple):
    """A quantity of a page: its words, where they are in the text of its block, and what may name a source."""

    words: str
    place: range
    block: str
    sentence: str
    """With the paragraph before it, for a row of a table."""


def quantities(page: str, pattern: re.Pattern[str] = QUANTITIES) -> Iterator[Quantity]:
    """Yield the quantities in the prose of a page."""
    before = ""
    for raw in BLOCK.split(FENCE.sub("\n\n", page)):
        block = " ".join(raw.split())
        visible = CODE.sub(lambda match: "\x00" * len(match[0]), block)
        for match in pattern.finditer(visible):
            if block.startswith("|"):
                sentence = f"{before} {block}"
            else:
                breaks = [0, *(end.end() for end in SENTENCE.finditer(visible)), len(block)]
                start = max(place for place in breaks if place <= match.start())
                sentence = block[start : min(place for place in breaks if place >= match.end())]
            yield Quantity(match[0], range(match.start(), match.end()), block, sentence)
        if block and not block.startswith("|"):
            before = block

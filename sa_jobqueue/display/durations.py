"""Durations as people write them: `30s`, `5m`, `1h30m` or `7d`."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Final

_UNITS: Final = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhdw])", re.ASCII)
_DURATION: Final = re.compile(rf"(?:{_PART.pattern})+", re.ASCII)


def is_duration(text: str) -> bool:
    """Return whether a text is a duration with units."""
    return _DURATION.fullmatch(text.strip()) is not None


def read_duration(text: str) -> timedelta:
    """Parse a duration such as `30s`, `5m`, `1h30m` or `7d`. Raises: ValueError with the rest of a sentence."""
    text = text.strip()
    if not (text == "0" or is_duration(text)):
        unit = f"; add a unit: {text}s" if re.fullmatch(r"\d+(\.\d+)?", text) else ""
        raise ValueError(f"is not a duration such as 30s, 5m, 12h or 7d{unit}")
    try:
        return sum((timedelta(**{_UNITS[unit]: float(number)}) for number, unit in _PART.findall(text)), start=timedelta(0))
    except OverflowError:
        raise ValueError("is too long") from None


def write_duration(value: timedelta) -> str:
    """Return a duration, not negative, as `read_duration` reads it."""
    minutes, seconds = divmod(value.seconds, 60)
    hours, minutes = divmod(minutes, 60)
    second_text = f"{seconds}.{value.microseconds:06}".rstrip("0").rstrip(".") if value.microseconds else str(seconds)
    parts = ((str(value.days), "d"), (str(hours), "h"), (str(minutes), "m"), (second_text, "s"))
    return "".join(f"{number}{unit}" for number, unit in parts if number != "0") or "0"


def shown_duration(value: timedelta) -> str:
    """Return a duration to the millisecond in all its units, such as `2 h 5 min`; a negative one in seconds."""
    seconds_left = round(value.total_seconds(), 3)
    parts: list[str] = []
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds_left >= size:
            parts.append(f"{int(seconds_left // size)} {unit}")
            seconds_left = round(seconds_left % size, 3)
    return " ".join([*parts, *([f"{seconds_left:g} s"] if seconds_left or not parts else [])])

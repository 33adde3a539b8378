"""Durations, as people read them."""

from __future__ import annotations

from datetime import timedelta


def span(given: timedelta) -> str:
    """Return a duration in the two largest units that matter."""
    seconds = max(given.total_seconds(), 0.0)
    if seconds < 10:
        return f"{seconds:.1f} s"
    parts: list[str] = []
    rest = round(seconds)
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        if rest >= size and len(parts) < 2:
            parts.append(f"{rest // size} {unit}")
            rest %= size
        elif parts:
            break
    return " ".join(parts)

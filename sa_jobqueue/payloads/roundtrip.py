"""Whether a value came back from JSON as it was, and if not, where it differs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Set
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

_ABSENT: Final = object()


class Difference(NamedTuple):
    """The first place at which a decoded value differs."""

    path: str
    """Empty for the whole value."""
    value: Any
    is_certain: bool
    """False for objects that compare by identity and have no fields to compare: their JSON has to decide."""


def difference(value: Any, decoded: Any, path: str = "") -> Difference | None:
    """Return where `decoded` differs from `value`, None if they are equal.

    Models and dataclasses are compared by their fields, so private attributes and subclasses without further fields do not
    count; a list equals a tuple of the same items, a NaN another one.
    """
    if value is decoded or _is_equal(value, decoded) or isinstance(value, Iterator):
        return None
    if isinstance(value, float) and isinstance(decoded, float) and math.isnan(value) and math.isnan(decoded):
        return None
    if isinstance(value, datetime) and isinstance(decoded, datetime) and None not in {value.tzinfo, decoded.tzinfo}:
        # Within an hour that a time zone has twice, `==` is False between zones.
        return None if value.astimezone(UTC) == decoded.astimezone(UTC) else Difference(path, value, True)
    fields = _fields(value)
    if fields is not None and isinstance(value, type(decoded)):
        decoded_fields = _fields(decoded) or {}
        return _first((f"{path}.{name}", item, decoded_fields.get(name, _ABSENT)) for name, item in fields.items())
    if isinstance(value, Mapping) and isinstance(decoded, Mapping):
        if len(value) == len(decoded) and all(key in decoded for key in value):
            return _first((f"{path}.{key}", item, decoded[key]) for key, item in value.items())
    elif isinstance(value, (list, tuple)) and isinstance(decoded, (list, tuple)):
        if len(value) == len(decoded):
            return _first((f"{path}[{index}]", item, decoded[index]) for index, item in enumerate(value))
    elif isinstance(value, Set) and isinstance(decoded, Set):
        by_identity = len(value) == len(decoded) and any(_compares_by_identity(item) for item in value)
        return Difference(path, value, not by_identity)
    return Difference(path, value, not (type(value) is type(decoded) and _compares_by_identity(value)))


def unordered(data: Any) -> Any:
    """Return JSON with the items of each array sorted: those of a set are written in any order."""
    if isinstance(data, dict):
        return {key: unordered(item) for key, item in data.items()}
    return sorted((unordered(item) for item in data), key=repr) if isinstance(data, list) else data


def _first(pairs: Iterator[tuple[str, Any, Any]]) -> Difference | None:
    uncertain = None
    for path, value, decoded in pairs:
        item_difference = difference(value, decoded, path)
        if item_difference is not None and item_difference.is_certain:
            return item_difference
        uncertain = uncertain or item_difference
    return uncertain


def _is_equal(value: Any, decoded: Any) -> bool:
    try:
        return bool(value == decoded)
    except Exception:  # such as of an array, or of an application's own `__eq__`
        return False


def _compares_by_identity(value: Any) -> bool:
    equality: Any = type(value).__eq__
    return equality is object.__eq__


def _fields(value: Any) -> dict[str, Any] | None:
    """Return the fields of a Pydantic model or a dataclass, None for any other value."""
    declared = getattr(type(value), "__pydantic_fields__", None)
    if declared is None:
        if not dataclasses.is_dataclass(value):
            return None
        declared = [field.name for field in dataclasses.fields(value)]
    extra = getattr(value, "__pydantic_extra__", None) or {}
    return {name: getattr(value, name, _ABSENT) for name in declared} | extra

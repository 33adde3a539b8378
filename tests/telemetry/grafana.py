"""A dashboard held against Grafana's published schema of version 11, as the classes that Grafana generates from it."""

from __future__ import annotations

import enum
import json
import types
from collections.abc import Iterator
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from grafana_foundation_sdk.cog import encoder, plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

plugins.register_default_plugins()
_MODELS = "grafana_foundation_sdk.models"
_PLUGIN = {"titleFormat", "useValueForTime"}
"""Fields of an annotation that its Prometheus plugin reads; the schema has only those of Grafana itself."""


def faults(document: Any) -> list[str]:
    """Return fields of a dashboard that the schema does not know, and values of another type than it asks for, by place."""
    read = Dashboard.from_json(document)
    back = json.loads(encoder.JSONEncoder().encode(read))
    return [*_unknown(document, back, "$"), *_unfit(read, Dashboard, "$")]


def _unknown(document: Any, parsed: Any, place: str) -> Iterator[str]:
    """Yield fields that are lost when it is read and written again."""
    if isinstance(document, dict) and isinstance(parsed, dict):
        for name, value in document.items():
            if name in _PLUGIN and place.startswith("$.annotations."):
                continue
            if name in parsed:
                yield from _unknown(value, parsed[name], f"{place}.{name}")
            else:
                yield f"{place}.{name} is not known"
    elif isinstance(document, list) and isinstance(parsed, list) and len(document) == len(parsed):
        for number, (value, parsed_value) in enumerate(zip(document, parsed, strict=True)):
            yield from _unknown(value, parsed_value, f"{place}[{number}]")
    elif document != parsed:
        yield f"{place} becomes {parsed!r}"


def _unfit(value: Any, hint: Any, place: str) -> Iterator[str]:
    origin, arguments = get_origin(hint), get_args(hint)
    if hint in {Any, object}:
        yield from _unfit_fields(value, place)
        return
    if origin in {Union, types.UnionType}:
        if not any(next(_unfit(value, argument, place), None) is None for argument in arguments):
            # Of the alternatives the one that it is meant to be says most: the one with fewest faults.
            every = [list(_unfit(value, argument, place)) for argument in arguments if argument is not type(None)]
            yield from min(every, key=lambda problems: (type(value).__name__ not in str(hint), len(problems)))
    elif origin is Literal:
        if value not in arguments:
            yield f"{place} is {value!r}, and not one of {arguments}"
    elif origin is list and isinstance(value, list):
        for number, member in enumerate(value):
            yield from _unfit(member, arguments[0], f"{place}[{number}]")
    elif origin is dict and isinstance(value, dict):
        for name, member in value.items():
            yield from _unfit(member, arguments[1], f"{place}.{name}")
    elif isinstance(hint, type) and issubclass(hint, enum.Enum):
        if value not in {member.value for member in hint}:
            yield f"{place} is {value!r}, which {hint.__name__} has not"
    elif isinstance(hint, type) and hint.__module__.startswith(_MODELS):
        parsed = hint.from_json(value) if isinstance(value, dict) else value  # type: ignore[attr-defined]
        yield from _unfit_fields(parsed, place) if isinstance(parsed, hint) else [f"{place} is no {hint.__name__}"]
    elif isinstance(value, bool) != (hint is bool) or not isinstance(
        value, (int, float) if hint is float else origin or hint
    ):
        yield f"{place} is {value!r}, which is no {hint}"
    else:
        yield from _unfit_fields(value, place)


def _unfit_fields(value: Any, place: str) -> Iterator[str]:
    if type(value).__module__.startswith(_MODELS):
        for name, hint in get_type_hints(type(value)).items():
            yield from _unfit(getattr(value, name), hint, f"{place}.{name}")

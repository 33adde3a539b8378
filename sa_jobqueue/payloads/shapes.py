"""Whether JSON written as one declared type can be read as another, decided from their JSON schemas.

A job whose blockers have the wrong output types is refused when it is enqueued, not when it runs. Only types that can never
match are refused: `int | str` can be read as `int`, because the output may be one; a dataclass as any other whose required
fields it has, because it is passed as JSON. A type checker is stricter.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

Schema: TypeAlias = Mapping[str, Any]

_ANYTHING: Final[Schema] = {}
_NULL: Final[Schema] = {"type": "null"}
_NUMBERS: Final = {"integer", "number"}
_LISTS: Final = {list, tuple, Sequence, Iterable}
REFERENCE: Final = "sa_jobqueue.reference"
"""Key in the metadata of Pydantic's schema of a reference to a mapped object."""


def has_references(core_schema: Any) -> bool:
    """Return whether a type, by Pydantic's schema of it, may contain references to mapped objects."""
    level = [core_schema]
    while level:
        if any(isinstance(part, dict) and REFERENCE in part.get("metadata", ()) for part in level):
            return True
        level = [
            nested
            for part in level
            for nested in (part.values() if isinstance(part, dict) else part)
            if isinstance(nested, (dict, list, tuple))
        ]
    return False


class Shape:
    """The JSON shape of a declared type. A type without a schema matches everything."""

    def __init__(self, schema: Schema, root: Schema | None = None) -> None:
        self._schema = schema
        self._root = schema if root is None else root

    @classmethod
    def of_nothing(cls) -> Shape:
        """Return the shape of null."""
        return cls(_NULL)

    @classmethod
    def of_anything(cls) -> Shape:
        """Return a shape that matches every other."""
        return cls(_ANYTHING)

    @property
    def bounds(self) -> tuple[int, int | None]:
        """Minimum and maximum number of items of an array; None means no maximum."""
        schema = self._resolved()
        if schema.get("type") != "array":
            return 0, None
        return int(schema.get("minItems", 0)), schema.get("maxItems")

    def item(self, place: int) -> Shape:
        """Return the shape of one item of an array."""
        schema = self._resolved()
        if schema.get("type") != "array":
            return Shape.of_anything()
        first = schema.get("prefixItems", ())
        return self._part(first[place] if place < len(first) else schema.get("items", _ANYTHING))

    def can_be(self, target: Shape) -> bool:
        """Return whether some JSON of this shape also has the other shape; arrays are assumed not to be empty."""
        return self._meets(target, frozenset())

    def _part(self, schema: Any) -> Shape:
        return Shape(schema if isinstance(schema, Mapping) else _ANYTHING, self._root)

    def _resolved(self) -> Schema:
        schema = self._schema
        while "$ref" in schema:
            node: Any = self._root
            for name in str(schema["$ref"]).removeprefix("#/").split("/"):
                node = node.get(name, _ANYTHING) if isinstance(node, Mapping) else _ANYTHING
            schema = node
        return schema

    def _meets(self, target: Shape, compared_pairs: frozenset[tuple[int, int]]) -> bool:
        ours, theirs = self._resolved(), target._resolved()
        pair = (id(ours), id(theirs))
        if pair in compared_pairs:  # a recursive type: differences are found elsewhere
            return True
        compared_pairs |= {pair}
        for choice in ("anyOf", "oneOf"):
            if choice in ours:
                return any(self._part(alternative)._meets(target, compared_pairs) for alternative in ours[choice])
            if choice in theirs:
                return any(self._meets(target._part(alternative), compared_pairs) for alternative in theirs[choice])
        if not _values_meet(ours, theirs) or not _types_meet(ours, theirs):
            return False
        match ours.get("type"):
            case "array":
                lowest, highest = self.bounds
                least, most = target.bounds
                if (highest is not None and highest < least) or (most is not None and most < lowest):
                    return False
                count = max(len(array.get("prefixItems", ())) for array in (ours, theirs)) or 1
                return all(self.item(place)._meets(target.item(place), compared_pairs) for place in range(count))
            case "object" if theirs.get("type") == "object":
                return self._object_meets(target, ours, theirs, compared_pairs)
        return True

    def _object_meets(self, target: Shape, ours: Schema, theirs: Schema, compared_pairs: frozenset[tuple[int, int]]) -> bool:
        our_properties, their_properties = ours.get("properties", {}), theirs.get("properties", {})
        further = ours.get("additionalProperties", not our_properties)
        for name in theirs.get("required", ()):
            if name in our_properties:
                property_shape = self._part(our_properties[name])
            elif further is False:
                return False
            else:
                property_shape = self._part(further)
            if not property_shape._meets(target._part(their_properties.get(name, _ANYTHING)), compared_pairs):
                return False
        return True


def _values_meet(ours: Schema, theirs: Schema) -> bool:
    our_values, their_values = _values(ours), _values(theirs)
    return our_values is None or their_values is None or any(value in their_values for value in our_values)


def _values(schema: Schema) -> list[Any] | None:
    """Return the values of an enum or a literal; None for any value."""
    return [schema["const"]] if "const" in schema else schema.get("enum")


def _types_meet(ours: Schema, theirs: Schema) -> bool:
    our_type, their_type = ours.get("type"), theirs.get("type")
    if not isinstance(our_type, str) or not isinstance(their_type, str):
        return True
    return our_type == their_type or {our_type, their_type} == _NUMBERS


def name_of(declared: Any) -> str:
    """Return a type as written in an annotation, without module names."""
    if declared is type(None):
        return "None"
    if declared is Ellipsis:
        return "..."
    origin, arguments = typing.get_origin(declared), typing.get_args(declared)
    if origin is None:
        return getattr(declared, "__name__", str(declared))
    if origin in {typing.Union, types.UnionType}:
        return " | ".join(map(name_of, arguments))
    if origin is typing.Annotated:
        return name_of(arguments[0])
    if origin is typing.Literal:
        return str(declared).replace("typing.", "")
    return f"{name_of(origin)}[{', '.join(map(name_of, arguments))}]"


def item_name(declared: Any, place: int) -> str:
    """Return the type of one item of a list or tuple, as written; the whole type if it is neither."""
    arguments = typing.get_args(declared)
    if typing.get_origin(declared) is tuple and arguments[-1] is not Ellipsis:
        return name_of(arguments[place]) if place < len(arguments) else name_of(declared)
    return name_of(arguments[0]) if typing.get_origin(declared) in _LISTS else name_of(declared)

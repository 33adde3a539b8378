"""The mapped objects that a stored payload refers to, as text. They are named by their stored identities, and not loaded."""

from __future__ import annotations

from typing import Any, Final

CLASS: Final = "$class"
"""Key of a stored reference with the name of the class; the other keys are attributes of the primary key."""


def objects_in(payload: Any) -> list[str]:
    """Return the objects that a stored payload refers to, each with its field: `order: Order 7`."""
    names: list[str] = []
    level = [("", payload)]
    while level:
        below: list[tuple[str, Any]] = []
        for field, node in level:
            if isinstance(node, dict) and isinstance(node.get(CLASS), str):
                key = {name: part for name, part in sorted(node.items()) if name != CLASS}
                shown_key = ", ".join(str(part) if len(key) == 1 else f"{name} {part}" for name, part in key.items())
                names.append(f"{field + ': ' if field else ''}{node[CLASS]} {shown_key}"[:200])
            elif isinstance(node, dict):
                below += [(f"{field}.{name}" if field else name, part) for name, part in node.items()]
            elif isinstance(node, list):
                below += [(field, part) for part in node]
        level = below
    return names

"""How Alembic finds the library, whichever of its releases an application has."""

from __future__ import annotations

from importlib.metadata import entry_points
from types import ModuleType
from typing import Any


def test_the_entry_point_of_alembic_loads_a_module_and_a_collection_of_modules() -> None:
    """Alembic 1.20.1 and newer take a module; older ones iterate over the loaded object, while `alembic` is imported."""
    (entry,) = [entry for entry in entry_points(group="alembic.plugins") if "sa_jobqueue" in entry.name]
    loaded: Any = entry.load()
    assert isinstance(loaded, ModuleType)
    assert list(loaded) == [loaded]

"""The parts of the library for the contracts."""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path
from types import ModuleType

import sa_jobqueue

ROOT = Path(sa_jobqueue.__file__).parents[1]
SOURCE = ROOT / "sa_jobqueue"
OPTIONAL = ("sa_jobqueue.pipeline.spark", "sa_jobqueue.dashboard", "sa_jobqueue.integrations", "sa_jobqueue.__main__")
"""What needs an extra to be imported, or does something when it is."""


def modules() -> list[ModuleType]:
    """Import every module that needs no extra."""
    names = [module.name for module in pkgutil.walk_packages(sa_jobqueue.__path__, "sa_jobqueue.")]
    return [sa_jobqueue, *(importlib.import_module(name) for name in names if not name.startswith(OPTIONAL))]


def is_public(module: ModuleType) -> bool:
    """Return whether neither a module nor a package around it is its package's own."""
    return not any(part.startswith("_") for part in module.__name__.split("."))

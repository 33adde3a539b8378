"""No module imports itself through others, and no folder does: not even for types only, or within a function."""

from __future__ import annotations

import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest

from tests.contracts.packages import SOURCE


@pytest.fixture
def graph() -> grimp.ImportGraph:
    """Return the imports of all modules, including those within functions and under `TYPE_CHECKING`."""
    return grimp.build_graph("sa_jobqueue", cache_dir=None)


def module_cycle(graph: grimp.ImportGraph) -> list[str]:
    """Return a cycle of modules, or an empty list."""
    return _cycle({module: graph.find_modules_directly_imported_by(module) for module in graph.modules})


def folder_cycle(graph: grimp.ImportGraph) -> list[str]:
    """Return a cycle of folders, or an empty list. A folder and those within it are one to each other."""
    imported: dict[str, set[str]] = {}
    for module in graph.modules:
        folder = _folder(module)
        for other in map(_folder, graph.find_modules_directly_imported_by(module)):
            if not _is_within(other, folder) and not _is_within(folder, other):
                imported.setdefault(folder, set()).add(other)
    return _cycle(imported)


def test_modules_have_no_import_cycle(graph: grimp.ImportGraph) -> None:
    assert module_cycle(graph) == []


def test_folders_have_no_import_cycle(graph: grimp.ImportGraph) -> None:
    assert folder_cycle(graph) == []


def test_no_test_imports_what_another_test_file_defines() -> None:
    """What several files need is in a module of its own, which stays when one of them is split or renamed."""
    imports = re.compile(r"^\s*(from tests\.[\w.]*\btest_\w+ import|import tests\.[\w.]*\btest_\w+).*", re.MULTILINE)
    tests = Path(__file__).parents[1]
    assert {str(path): matches for path in tests.rglob("*.py") if (matches := imports.findall(path.read_text()))} == {}


def _cycle(imported: dict[str, set[str]]) -> list[str]:
    try:
        TopologicalSorter(imported).prepare()
    except CycleError as error:
        cycle: list[str] = error.args[1]
        return cycle
    return []


def _folder(module: str) -> str:
    is_package = (SOURCE.parent / module.replace(".", "/")).is_dir()
    return module if is_package else module.rpartition(".")[0]


def _is_within(folder: str, other_folder: str) -> bool:
    return folder == other_folder or folder.startswith(f"{other_folder}.")

"""Every public name has a docstring, whose first line is a sentence."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contracts.packages import ROOT, SOURCE

FILES = sorted(SOURCE.rglob("*.py"))
Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def public(node: ast.AST, path: str) -> Iterator[tuple[str, Documented]]:
    """Yield what a module, or a class in it, shows: a nested function is its function's own business."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and not child.name.startswith("_"):
            overload = any(ast.unparse(decorator) == "overload" for decorator in child.decorator_list)
            if not overload:
                yield f"{path}.{child.name}", child
            if isinstance(child, ast.ClassDef):
                yield from public(child, f"{path}.{child.name}")


@pytest.mark.long
def test_everything_public_has_a_docstring() -> None:
    shown: list[tuple[Path, str, Documented]] = []
    for path in FILES:
        module = ast.parse(path.read_text())
        shown.append((path, path.stem, module))
        if not any(part.startswith("_") and part != "__init__.py" for part in path.relative_to(SOURCE).parts):
            shown += [(path, *one) for one in public(module, path.stem)]
    assert len(shown) > 2 * len(FILES)
    bare = []
    for path, name, node in shown:
        first = (ast.get_docstring(node) or "").partition("\n")[0]
        if not first or not first.rstrip('"').endswith((".", ":", "`")):
            bare.append(f"{path.relative_to(ROOT)}: {name}: {first!r}")
    assert bare == []

"""Every public name has a docstring, whose first line is a sentence, and labels are those of contributing/style.md."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.contracts.packages import ROOT, SOURCE

FILES = sorted(SOURCE.rglob("*.py"))
Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def public(node: ast.AST, path: str) -> Iterator[tuple[str, Documented]]:
    """Yield the members of a module, or of a class in it: a nested function is its function's own business."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and not child.name.startswith("_"):
            overload = any(ast.unparse(decorator) == "overload" for decorator in child.decorator_list)
            if not overload:
                yield f"{path}.{child.name}", child
            if isinstance(child, ast.ClassDef):
                yield from public(child, f"{path}.{child.name}")


def test_everything_public_has_a_docstring() -> None:
    documented: list[tuple[Path, str, Documented]] = []
    for path in FILES:
        module = ast.parse(path.read_text())
        documented.append((path, path.stem, module))
        if not any(part.startswith("_") and part != "__init__.py" for part in path.relative_to(SOURCE).parts):
            documented += [(path, *entry_parts) for entry_parts in public(module, path.stem)]
    assert len(documented) > 2 * len(FILES)
    bare = []
    for path, name, node in documented:
        first = (ast.get_docstring(node) or "").partition("\n")[0]
        if not first or not first.rstrip('"').endswith((".", ":", "`")):
            bare.append(f"{path.relative_to(ROOT)}: {name}: {first!r}")
    assert bare == []


def test_docstrings_use_the_labels_of_the_style_page() -> None:
    labels = set(re.findall(r"^\| `(\w+):` \|", (ROOT / "contributing/style.md").read_text(), re.MULTILINE))
    used: dict[str, str] = {}
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                for label in re.findall(r"^([A-Z][a-z]+):(?= |$)", ast.get_docstring(node) or "", re.MULTILINE):
                    used[label] = f"{path.relative_to(ROOT)}: {node.name}"
    assert {label: where for label, where in used.items() if label not in labels | {"Example"}} == {}  # of a command's help
    assert labels <= used.keys()

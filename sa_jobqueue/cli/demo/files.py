"""Find the Python source files of the standard library and count in them."""

from __future__ import annotations

import ast
import sysconfig
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

BROKEN: Final = (SyntaxError, ValueError, RecursionError)
"""Exceptions of a file that cannot be parsed."""

_TRIES: Final = 10


@dataclass(frozen=True, slots=True)
class Counts:
    """The counts of one file."""

    lines: int
    functions: int
    classes: int
    imports: int


def library_root() -> Path:
    """Return the directory of the running interpreter's standard library."""
    return Path(sysconfig.get_path("stdlib"))


def find(root: Path, limit: int | None = None) -> list[str]:
    """Return the paths of the source files below `root`, relative to it, without installed packages.

    Test data comes first, so that a run of only `limit` files has broken ones as well.
    """
    paths = (path.relative_to(root) for path in root.rglob("*.py") if path.is_file())
    own = [path for path in paths if not {"site-packages", "dist-packages"} & set(path.parts)]
    own.sort(key=lambda path: (not ("data" in path.parent.name or "bad" in path.name), path))
    return [path.as_posix() for path in own[:limit]]


def count(path: Path) -> Counts:
    """Parse a file and count in it. Raises: one of `BROKEN` if it is not valid Python; OSError."""
    source = path.read_bytes()
    kinds = Counter(map(type, _statements(_parse(source, path.name))))
    return Counts(
        lines=len(source.splitlines()),
        functions=kinds[ast.FunctionDef] + kinds[ast.AsyncFunctionDef],
        classes=kinds[ast.ClassDef],
        imports=kinds[ast.Import] + kinds[ast.ImportFrom],
    )


def _parse(source: bytes, name: str) -> ast.AST:
    # CPython 3.11 (gh-106905) shares one recursion counter between threads: concurrent parsing, or formatting of a
    # traceback, can raise "AST constructor recursion depth mismatch".
    for _ in range(_TRIES):
        try:
            return ast.parse(source, name)
        except SystemError:
            continue
    return ast.parse(source, name)


def _statements(tree: ast.AST) -> Iterator[ast.AST]:
    # Faster than `ast.walk`: statements are never inside expressions, and most nodes are expressions.
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            below = getattr(node, name, None)
            if isinstance(below, list):  # for a lambda or a conditional it is an expression
                waiting.extend(below)


def count_plainly(root: Path, paths: Iterable[str]) -> dict[str, Counts | None]:
    """Count in all files in this process: the expected results. None: the file is broken."""
    found: dict[str, Counts | None] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about old syntax; the workers' environment ignores them, too
        for path in paths:
            try:
                found[path] = count(root / path)
            except BROKEN:
                found[path] = None
    return found

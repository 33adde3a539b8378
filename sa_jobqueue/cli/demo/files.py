"""Python source files of the standard library, and what is counted in them."""

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
"""What parsing a file can raise because of what is in the file."""

_TRIES: Final = 10


@dataclass(frozen=True, slots=True)
class Counts:
    """What is counted in one file."""

    lines: int
    functions: int
    classes: int
    imports: int


def library_root() -> Path:
    """Return the directory of the running interpreter's standard library."""
    return Path(sysconfig.get_path("stdlib"))


def find(root: Path, limit: int | None = None) -> list[str]:
    """Return the paths of the source files below `root`, relative to it, installed packages left out.

    Those that look like test data come first, so that a run cut to `limit` files has broken ones as well.
    """
    paths = (path.relative_to(root) for path in root.rglob("*.py") if path.is_file())
    own = [path for path in paths if not {"site-packages", "dist-packages"} & set(path.parts)]
    own.sort(key=lambda path: (not ("data" in path.parent.name or "bad" in path.name), path))
    return [path.as_posix() for path in own[:limit]]


def count(path: Path) -> Counts:
    """Parse a file and count in it. Raises: one of `BROKEN` for what is no valid source; OSError."""
    source = path.read_bytes()
    kinds = Counter(map(type, _statements(_parse(source, path.name))))
    return Counts(
        lines=len(source.splitlines()),
        functions=kinds[ast.FunctionDef] + kinds[ast.AsyncFunctionDef],
        classes=kinds[ast.ClassDef],
        imports=kinds[ast.Import] + kinds[ast.ImportFrom],
    )


def _parse(source: bytes, name: str) -> ast.AST:
    # CPython 3.11 (gh-106905) counts the depth of all threads' trees in one place. When two parse, of which one may be
    # formatting a traceback, a switch in between can end in "AST constructor recursion depth mismatch".
    for _ in range(_TRIES):
        try:
            return ast.parse(source, name)
        except SystemError:
            continue
    return ast.parse(source, name)


def _statements(tree: ast.AST) -> Iterator[ast.AST]:
    # Not `ast.walk`: what is counted never stands inside an expression, and most of a tree is expressions.
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            below = getattr(node, name, None)
            if isinstance(below, list):  # of a lambda or a condition it is an expression
                waiting.extend(below)


def count_plainly(root: Path, paths: Iterable[str]) -> dict[str, Counts | None]:
    """Count in one file after the other, in this process: what the queue's results must equal. None: it is broken."""
    found: dict[str, Counts | None] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of old syntax; the workers are told the same by their environment
        for path in paths:
            try:
                found[path] = count(root / path)
            except BROKEN:
                found[path] = None
    return found

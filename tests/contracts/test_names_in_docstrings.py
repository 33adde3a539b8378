"""Every name in back-ticks in a docstring or comment of the package is one that it has, or that is listed here."""

from __future__ import annotations

import ast
import asyncio
import builtins
import keyword
import re
import sys
from collections.abc import Iterator
from itertools import pairwise

import psycopg
import sqlalchemy
from sqlalchemy import orm

from tests.contracts.packages import ROOT, SOURCE

OTHERS = """
alembic autocommit_block binds merge_contextvars pytest_plugins python3 redaction regex string to_pandas
date_trunc ignore_startup_parameters pg_ timestamptz ComputeXidHorizons JAN LW MON PGCLIENTENCODING PGDATESTYLE
of_task_ids of_write_id segment_first_type segment_last_type segment_quota
Host act_form exe gpj idleTimeoutSeconds jobqueue_producer jpg mail_job rand_a rule_files safe with_lock_retries
"""
"""Names of other libraries; of PostgreSQL and cron; of parameters that are put together; of templates, HTTP and examples."""
NAME = re.compile(r"(?<!`)`([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)(?:\(\))?`(?!`)")
COMMENT = re.compile(r"#.*")
FILES = {path: path.read_text() for path in sorted(SOURCE.rglob("*.py"))}
TREES = {path: ast.parse(source) for path, source in FILES.items()}


def documented(node: ast.AST) -> ast.Constant | None:
    """Return a node's docstring."""
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(node):
        first = node.body[0]
        assert isinstance(first, ast.Expr)
        return first.value if isinstance(first.value, ast.Constant) else None
    return None


def known() -> Iterator[str]:
    """Yield defined names, and names in strings: words of SQL, options, attributes."""
    yield from (*keyword.kwlist, *sys.stdlib_module_names)
    for library in (builtins, asyncio, psycopg, sqlalchemy, orm, orm.Session, orm.Mapper):
        yield from dir(library)
    for path, tree in TREES.items():
        yield from path.relative_to(ROOT).with_suffix("").parts
        docstrings = {id(documented(node)) for node in ast.walk(tree)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef):  # a variable of a function is its own business
                assigned = [assignment for assignment in node.body if isinstance(assignment, ast.Assign | ast.AnnAssign)]
                yield from variables(*assigned)
            match node:
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                    yield name
                case ast.arg(arg=name) | ast.Attribute(attr=name) | ast.alias(asname=str(name)) | ast.keyword(arg=str(name)):
                    yield name
                case ast.alias(name=name):
                    yield from name.split(".")
                case ast.Constant(value=str(words)) if id(node) not in docstrings:
                    yield from re.findall(r"\w*_\w+|^\w+$|(?<=[-.{\"'])\w+|\w+(?=[-.(=])|\b[A-Z]+\b", words)


def variables(*nodes: ast.AST) -> set[str]:
    """Return the names of variables in nodes."""
    return {name.id for node in nodes for name in ast.walk(node) if isinstance(name, ast.Name)}


def mentioned() -> Iterator[tuple[str, str]]:
    """Yield each name in back-ticks that is no variable of its module, and where it stands."""
    for path, tree in TREES.items():
        local_names, place = variables(tree), path.relative_to(ROOT)
        for node in ast.walk(tree):
            if docstring := documented(node):
                names = NAME.findall(str(docstring.value))
                yield from ((name, f"{place}:{docstring.lineno}") for name in names if name not in local_names)
        for number, line in enumerate(FILES[path].splitlines(), start=1):
            for comment in COMMENT.findall(line):
                yield from ((name, f"{place}:{number}") for name in NAME.findall(comment) if name not in local_names)


def test_names_in_back_ticks_exist() -> None:
    names = {*known(), *OTHERS.split()}
    ends = tuple(name for name in names if name.startswith("_") and len(name) > 4)  # of parameters that f-strings name
    paths = [path.parent if path.stem == "__init__" else path.with_suffix("") for path in FILES]
    modules, stems = {(path.parent.name, path.name) for path in paths}, {path.name for path in paths}
    packages = {path.parent.name: path.read_text() for path in FILES if path.stem == "__init__"}
    stale = []
    for name, place in mentioned():
        parts = name.split(".")
        moved = [
            last
            for owner, last in pairwise(parts)
            if owner in packages and last in stems and (owner, last) not in modules and last not in packages[owner]
        ]
        unknown = [part for part in parts if part not in names and not part.endswith(ends) and not part.startswith("n_")]
        if moved or unknown:
            stale.append(f"{place}: {name}")
    assert not stale, "\n".join(stale)

"""`aio` repeats every operation: same name, parameters, return, first line of docstring, and one line of body."""

from __future__ import annotations

import ast
import inspect
import typing
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from sa_jobqueue import aio, operations

WITHOUT_IO = {"after_commit"}
"""These take either session, so both colours show the same function."""
NAMES = [name for name in operations.__all__ if inspect.isfunction(getattr(operations, name)) and name not in WITHOUT_IO]


def first_line(func: Any) -> str:
    return (inspect.getdoc(func) or "").partition("\n")[0]


def test_there_are_operations_to_compare() -> None:
    assert len(NAMES) >= 10


@pytest.mark.parametrize("name", WITHOUT_IO)
def test_an_operation_without_io_is_the_same_in_both(name: str) -> None:
    assert getattr(aio, name) is getattr(operations, name)


def test_aio_has_nothing_else() -> None:
    own = [name for name, made in vars(aio).items() if inspect.isfunction(made) and made.__module__.startswith(aio.__name__)]
    assert sorted(own) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_an_operation_and_its_twin_differ_in_colour_alone(name: str) -> None:
    one, twin = getattr(operations, name), getattr(aio, name)
    assert inspect.iscoroutinefunction(twin)
    parameters, others = (list(inspect.signature(func).parameters.values()) for func in (one, twin))
    assert parameters[0].name == others[0].name == "session"
    assert [(p.name, p.kind, p.default) for p in parameters] == [(p.name, p.kind, p.default) for p in others]
    types, other_types = typing.get_type_hints(one), typing.get_type_hints(twin)
    assert (types.pop("session"), other_types.pop("session")) == (Session, AsyncSession)
    assert {key: str(hint) for key, hint in types.items()} == {key: str(hint) for key, hint in other_types.items()}
    assert first_line(one) == first_line(twin)


@pytest.mark.parametrize("name", NAMES)
def test_a_twin_is_one_line(name: str) -> None:
    (function,) = ast.parse(inspect.getsource(getattr(aio, name))).body
    assert isinstance(function, ast.AsyncFunctionDef)
    docstring, *body = function.body
    assert isinstance(docstring, ast.Expr)
    assert len(body) == 1
    assert f"session.run_sync(operations.{name}," in ast.unparse(body[0]) + ","

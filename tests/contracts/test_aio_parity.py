"""`aio` offers every operation for an `AsyncSession`: same name, parameters, result and docstring."""

from __future__ import annotations

import inspect
import typing
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from sa_jobqueue import aio, operations, wait_chain, wait_chains
from sa_jobqueue.errors import InvalidOptionError

WITHOUT_IO = {"after_commit"}
"""These take either session, so both modules have the same function."""
NAMES = [name for name in operations.__all__ if inspect.isfunction(getattr(operations, name)) and name not in WITHOUT_IO]


@pytest.mark.parametrize("name", WITHOUT_IO)
def test_an_operation_without_io_is_the_same_object_in_aio(name: str) -> None:
    assert getattr(aio, name) is getattr(operations, name)


def test_aio_exports_exactly_the_operations() -> None:
    assert aio.__all__ == sorted([*NAMES, *WITHOUT_IO, "wait_chain", "wait_chains"])


def test_wait_chain_differs_between_sync_and_async_only_in_its_engine() -> None:
    first, *parameters = inspect.signature(wait_chain).parameters.values()
    engine_parameter, *other_parameters = inspect.signature(aio.wait_chain).parameters.values()
    assert (first.annotation, engine_parameter.annotation, parameters) == ("Engine", "AsyncEngine", other_parameters)
    assert inspect.iscoroutinefunction(aio.wait_chain)
    first, *parameters = inspect.signature(wait_chains).parameters.values()
    engine_parameter, *other_parameters = inspect.signature(aio.wait_chains).parameters.values()
    assert (first.annotation, engine_parameter.annotation, parameters) == ("Engine", "AsyncEngine", other_parameters)


@pytest.mark.parametrize("name", NAMES)
def test_an_operation_differs_between_sync_and_async_only_in_its_session(name: str) -> None:
    operation, awaitable = getattr(operations, name), getattr(aio, name)
    assert inspect.iscoroutinefunction(awaitable)
    signature, awaited = inspect.signature(operation), inspect.signature(awaitable)
    first, *parameters = signature.parameters.values()
    session, *other_parameters = awaited.parameters.values()
    assert (first.name, session.name, session.annotation) == ("session", "session", AsyncSession)
    assert (parameters, signature.return_annotation) == (other_parameters, awaited.return_annotation)
    types, awaited_types = typing.get_type_hints(operation), typing.get_type_hints(awaitable)
    assert (types.pop("session"), awaited_types.pop("session")) == (Session, AsyncSession)
    assert types == awaited_types
    assert (awaitable.__name__, awaitable.__module__) == (name, "sa_jobqueue.aio")
    assert inspect.getdoc(operation) == inspect.getdoc(awaitable)


@pytest.mark.parametrize("name", NAMES)
async def test_a_session_of_the_other_kind_is_refused_with_the_function_to_use(name: str) -> None:
    wrong: Any = AsyncSession()
    with pytest.raises(InvalidOptionError, match=rf"is an AsyncSession: await sa_jobqueue\.aio\.{name}\("):
        getattr(operations, name)(wrong)
    wrong = Session()
    with pytest.raises(InvalidOptionError, match=rf"is a Session: call sa_jobqueue\.operations\.{name}\("):
        await getattr(aio, name)(wrong)

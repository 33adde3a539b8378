"""A package shows the names in its `__all__`, sorted."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

import sa_jobqueue
from sa_jobqueue import errors, operations
from sa_jobqueue.errors import InvalidOptionError
from tests.contracts.packages import modules

LISTED = [module for module in modules() if hasattr(module, "__all__")]


@pytest.mark.parametrize("module", LISTED, ids=lambda module: module.__name__)
def test_all_is_sorted_and_every_name_in_it_exists(module: ModuleType) -> None:
    listed = list(module.__all__)
    assert listed == sorted(set(listed))
    for name in listed:
        assert hasattr(module, name), name
        assert name == "__version__" or not name.startswith("_"), name


def test_every_error_is_listed() -> None:
    defined = [value for value in vars(errors).values() if getattr(value, "__module__", "") == errors.__name__]
    classes = [value for value in defined if isinstance(value, type) and issubclass(value, BaseException)]
    assert {error_class.__name__ for error_class in classes} <= set(errors.__all__)


@pytest.mark.parametrize("name", ["sa_jobqueue", "sa_jobqueue.models", "sa_jobqueue.operations", "sa_jobqueue.worker"])
def test_every_public_package_has_an_all_list(name: str) -> None:
    assert name in {module.__name__ for module in LISTED}


def test_the_top_level_package_exports_a_small_set_of_names() -> None:
    assert 20 <= len(sa_jobqueue.__all__) <= 32
    assert {name for name in sa_jobqueue.__all__ if name in vars(operations)} <= set(operations.__all__)


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("send_event", "operations"),
        ("trigger_jobs", "operations"),
        ("list_queues", "operations"),
        ("Retention", "settings"),
        ("NotFoundError", "errors"),
        ("WorkerStarted", "events"),
    ],
)
def test_importing_a_name_of_another_module_from_the_top_names_that_module(name: str, module: str) -> None:
    with pytest.raises(ImportError, match=f"from sa_jobqueue.{module} import {name}$"):
        getattr(sa_jobqueue, name)
    with pytest.raises(ImportError, match="cannot import name 'nonsense'"):
        exec("from sa_jobqueue import nonsense")
    assert not hasattr(sa_jobqueue, "nonsense")
    exec("from sa_jobqueue import aio")


def _with_payload(number: int) -> None: ...


def _without_payload() -> None: ...


@pytest.mark.parametrize("function", [_with_payload, _without_payload])
def test_enqueueing_without_a_session_names_it_before_the_payload(function: Any) -> None:
    handler: Any = sa_jobqueue.JobQueue().handler("noop")(function)
    for enqueue, arguments in ((handler.enqueue, (7,)), (handler.enqueue_many, (7, []))):
        with pytest.raises(InvalidOptionError, match=r"session: the first argument must be a Session or .* got int"):
            enqueue(*arguments)

"""A package shows the names in its `__all__`, sorted."""

from __future__ import annotations

from types import ModuleType

import pytest

import sa_jobqueue
from sa_jobqueue import operations
from tests.contracts.packages import modules

LISTED = [module for module in modules() if hasattr(module, "__all__")]


@pytest.mark.parametrize("module", LISTED, ids=lambda module: module.__name__)
def test_all_is_sorted_and_every_name_in_it_exists(module: ModuleType) -> None:
    listed = list(module.__all__)
    assert listed == sorted(set(listed))
    for name in listed:
        assert hasattr(module, name), name
        assert name == "__version__" or not name.startswith("_"), name


@pytest.mark.parametrize("name", ["sa_jobqueue", "sa_jobqueue.models", "sa_jobqueue.operations", "sa_jobqueue.worker"])
def test_every_public_package_has_an_all_list(name: str) -> None:
    assert name in {module.__name__ for module in LISTED}


def test_the_top_level_package_exports_a_small_set_of_names() -> None:
    assert 20 <= len(sa_jobqueue.__all__) <= 30
    assert {name for name in sa_jobqueue.__all__ if name in vars(operations)} <= set(operations.__all__)

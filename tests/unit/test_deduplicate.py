"""What a deduplication may say."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from sa_jobqueue import Deduplicate
from sa_jobqueue.errors import InvalidOptionError

BAD: list[tuple[str, Callable[[], Any]]] = [
    ("key", lambda: Deduplicate("")),
    ("key", lambda: Deduplicate("a\x00")),
    ("scope", lambda: Deduplicate("k", scope="all")),  # type: ignore[arg-type]
    ("window", lambda: Deduplicate("k", scope="any", window=timedelta(0))),
    ("window", lambda: Deduplicate("k", window=timedelta(1))),
    ("window", lambda: Deduplicate("k", scope="waiting", window=timedelta(1))),
    ("replace", lambda: Deduplicate("k", replace="input")),  # type: ignore[arg-type]
    ("replace", lambda: Deduplicate("k", replace=["queue"])),  # type: ignore[list-item]
    ("within", lambda: Deduplicate("k", replace=["input"], within=timedelta(1))),
    ("within", lambda: Deduplicate("k", replace=["schedule"], within=timedelta(0))),
    ("exclude", lambda: Deduplicate("k", exclude="id")),
]


@pytest.mark.parametrize(("field", "make"), BAD)
def test_what_cannot_be_meant_names_the_field(field: str, make: Callable[[], Any]) -> None:
    with pytest.raises(InvalidOptionError) as caught:
        make()
    assert caught.value.option == field

"""The reference states every parameter, field, result and error."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import griffe
import pytest

from tests.contracts.packages import ROOT

PAGES = sorted((ROOT / "docs/reference").glob("*.md"))
"""Written by `scripts/reference`; another test keeps them up to date."""
KNOWN = {"self", "cls", "session", "model", "by", "dry_run", "after", "limit", "job_id", "chain_id", "where", "history"}
OF_ERRORS = {"reason", "type_name", "field", "event", "attempt", "how", "place", "name", "table"}
COMMON = {"InvalidOptionError"}
"""The receiver, and what docs/reference/index.md explains once for all pages: parameters, attributes of errors, an error."""
OTHER = re.compile(
    r"\b(?:as(?: in)?|like|see|those of|options of)\s+`(?:sa_jobqueue\.(?:\w+\.)*)?([A-Za-z_.]+?)(?:\.__init__)?`",
    re.IGNORECASE,
)
"""A function or class whose docstring has the rest."""
RETURNED = re.compile(r"\breturn|\byield|\bdecorator\b|^Shape:", re.IGNORECASE | re.MULTILINE)
VALUES = {"sqlalchemy.orm.declared_attr", "sqlalchemy.orm.declared_attr.directive", "pytest.fixture"}
"""Decorators of functions that are read, not called."""
RAISED = re.compile(r"^\s+raise ([A-Z]\w+)\(", re.MULTILINE)
Documented = griffe.Class | griffe.Function


def listed(package: griffe.Module) -> Iterator[Documented]:
    """Yield the functions, methods and classes that are headings of the pages."""
    for page in PAGES:
        path: list[str] = []
        for marks, name in re.findall(r"^(##+) `([\w.]+)", page.read_text(encoding="utf-8"), re.MULTILINE):
            path[len(marks) - 2 :] = [name]
            if path[0].partition(".")[0] == "sa_jobqueue" and len(path) > 1:
                found: Any = package[".".join(path).partition(".")[2]]
                found = found.final_target if isinstance(found, griffe.Alias) else found
                is_value = found.is_function and {one.callable_path for one in found.decorators} & VALUES
                if isinstance(found, Documented) and not is_value:
                    yield found


def docstring(one: griffe.Object) -> str:
    """Return the docstring of a function or class, with that of the class or constructor beside it."""
    beside = one.parent if one.is_function else one.members.get("__init__")
    found = [one, beside] if beside is not None and not beside.is_module else [one]
    return "\n".join(part.docstring.value for part in found if part.docstring)


def parameters(one: Documented) -> Iterator[str]:
    """Yield the names that a caller can pass, without fields that have docstrings of their own."""
    if isinstance(one, griffe.Class) and ("dataclass" in one.labels or "NamedTuple" in map(str, one.bases)):
        fields = [field for field in one.members.values() if isinstance(field, griffe.Attribute) and field.annotation]
        names = [field.name for field in fields if not field.docstring and "instance-attribute" in field.labels]
    else:
        function = one.members.get("__init__") if isinstance(one, griffe.Class) else one
        names = [parameter.name for parameter in function.parameters] if isinstance(function, griffe.Function) else []
    known = KNOWN | OF_ERRORS if one.name.endswith("Error") else KNOWN
    yield from (name for name in names if name not in known and not name.startswith("_"))


class Reference:
    """The docstrings of listed names, which refer to each other."""

    def __init__(self, documented: list[Documented]) -> None:
        self.texts = {one.path.lower(): docstring(one) for one in documented}

    def states(self, text: str, wanted: re.Pattern[str], seen: frozenset[str] = frozenset()) -> bool:
        """Return whether a docstring, or one that it refers to, matches a pattern."""
        if wanted.search(text):
            return True
        for other in {name.lower() for name in OTHER.findall(text)} - seen:
            texts = [found for path, found in self.texts.items() if path.endswith(f".{other}")]
            if any(self.states(found, wanted, seen | {other}) for found in texts):
                return True
        return False

    def missing(self, one: Documented) -> list[str]:
        """Return the names that the docstrings of one function or class leave out."""
        text = self.texts[one.path.lower()]
        found = [name for name in parameters(one) if not self.states(text, re.compile(rf"`\*{{,2}}{name}`"))]
        if isinstance(one, griffe.Function):  # what its class says is not about this method
            text = one.docstring.value if one.docstring else ""
        returned = str(one.returns) if isinstance(one, griffe.Function) else "None"
        if returned not in {"None", "NoReturn", "Never"} and not self.states(text, RETURNED):
            found.append("return")
        constructors = [one.members.get("__init__"), one.members.get("__post_init__")]
        bodies = [part.source for part in (constructors if isinstance(one, griffe.Class) else [one]) if part]
        raised = {name for body in bodies for name in RAISED.findall(body)}
        return found + [name for name in sorted(raised - COMMON) if not self.states(text, re.compile(rf"\b{name}\b"))]


@pytest.fixture(scope="module")
def package() -> griffe.Module:
    """Give the package, read from its source."""
    package = griffe.load("sa_jobqueue", search_paths=[str(ROOT)])
    assert isinstance(package, griffe.Module)
    return package


def test_every_parameter_return_and_error_is_documented(package: griffe.Module) -> None:
    documented = list(listed(package))
    assert len(documented) > 250
    reference = Reference(documented)
    missing = {one.path: names for one in documented if (names := reference.missing(one))}
    assert missing == {}

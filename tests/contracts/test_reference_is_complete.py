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
                member: Any = package[".".join(path).partition(".")[2]]
                member = member.final_target if isinstance(member, griffe.Alias) else member
                is_value = member.is_function and {decorator.callable_path for decorator in member.decorators} & VALUES
                if isinstance(member, Documented) and not is_value:
                    yield member


def docstring(documented: griffe.Object) -> str:
    """Return the docstring of a function or class, with that of the class or constructor beside it."""
    beside = documented.parent if documented.is_function else documented.members.get("__init__")
    objects = [documented, beside] if beside is not None and not beside.is_module else [documented]
    return "\n".join(part.docstring.value for part in objects if part.docstring)


def parameters(documented: Documented) -> Iterator[str]:
    """Yield the names that a caller can pass, without fields that have docstrings of their own."""
    if isinstance(documented, griffe.Class) and (
        "dataclass" in documented.labels or "NamedTuple" in map(str, documented.bases)
    ):
        fields = [field for field in documented.members.values() if isinstance(field, griffe.Attribute) and field.annotation]
        names = [field.name for field in fields if not field.docstring and "instance-attribute" in field.labels]
    else:
        function = documented.members.get("__init__") if isinstance(documented, griffe.Class) else documented
        names = [parameter.name for parameter in function.parameters] if isinstance(function, griffe.Function) else []
    known_names = KNOWN | OF_ERRORS if documented.name.endswith("Error") else KNOWN
    yield from (name for name in names if name not in known_names and not name.startswith("_"))


class Reference:
    """The docstrings of listed names, which refer to each other."""

    def __init__(self, documented: list[Documented]) -> None:
        self.texts = {entry.path.lower(): docstring(entry) for entry in documented}

    def states(self, text: str, pattern: re.Pattern[str], visited: frozenset[str] = frozenset()) -> bool:
        """Return whether a docstring, or one that it refers to, matches a pattern."""
        if pattern.search(text):
            return True
        for reference in {name.lower() for name in OTHER.findall(text)} - visited:
            texts = [text for path, text in self.texts.items() if path.endswith(f".{reference}")]
            if any(self.states(text, pattern, visited | {reference}) for text in texts):
                return True
        return False

    def missing(self, documented: Documented) -> list[str]:
        """Return the names that the docstrings of one function or class leave out."""
        text = self.texts[documented.path.lower()]
        missing = [name for name in parameters(documented) if not self.states(text, re.compile(rf"`\*{{,2}}{name}`"))]
        if isinstance(documented, griffe.Function):  # what its class says is not about this method
            text = documented.docstring.value if documented.docstring else ""
        returned = str(documented.returns) if isinstance(documented, griffe.Function) else "None"
        if returned not in {"None", "NoReturn", "Never"} and not self.states(text, RETURNED):
            missing.append("return")
        constructors = [documented.members.get("__init__"), documented.members.get("__post_init__")]
        bodies = [part.source for part in (constructors if isinstance(documented, griffe.Class) else [documented]) if part]
        raised = {name for body in bodies for name in RAISED.findall(body)}
        return missing + [name for name in sorted(raised - COMMON) if not self.states(text, re.compile(rf"\b{name}\b"))]


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
    missing = {entry.path: names for entry in documented if (names := reference.missing(entry))}
    assert missing == {}

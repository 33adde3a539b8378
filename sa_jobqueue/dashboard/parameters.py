"""Bounded reading of query strings and forms: whatever is sent, a value is of its kind and size, or it is an error."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from math import isfinite
from typing import Any, Final, TypeVar
from uuid import UUID

from sa_jobqueue.display.durations import read_duration
from sa_jobqueue.models import JobClass

E = TypeVar("E", bound=StrEnum)
T = TypeVar("T")

MAX_TEXT: Final = 1000
"""Maximum length of one value."""
MAX_VALUES: Final = 1000
"""Maximum number of values of one name."""


class ParameterError(ValueError):
    """A parameter of a request has a value that is not accepted."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"`{name}` {reason}.")
        self.name = name


class Params:
    """The parameters of a request, by name; empty values count as missing. Every method raises ParameterError."""

    def __init__(self, items: Iterable[tuple[str, Any]]) -> None:
        self._values: dict[str, list[str]] = {}
        for name, value in items:
            if not isinstance(value, str):
                raise ParameterError(name, "must be text, not a file")
            if value:
                self._values.setdefault(name, []).append(value)

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def as_dict(self) -> dict[str, list[str]]:
        """Return all values by name."""
        return {name: list(values) for name, values in self._values.items()}

    def texts(self, name: str, *, at_most: int = 20, longest: int = MAX_TEXT) -> list[str]:
        """Return the values of a name, without duplicates."""
        texts = list(dict.fromkeys(self._values.get(name, ())))
        if len(texts) > at_most:
            raise ParameterError(name, f"may have at most {at_most} values, got {len(texts)}")
        for value in texts:
            _check_text(name, value, longest)
        return texts

    def text(self, name: str, *, longest: int = MAX_TEXT) -> str | None:
        """Return the value of a name, None if missing."""
        texts = self.texts(name, at_most=1, longest=longest)
        return texts[0] if texts else None

    def choices(self, name: str, kind: type[E]) -> list[E]:
        """Return the values of a name, each a member of `kind`."""
        members = {member.value: member for member in kind}
        for value in (texts := self.texts(name)):
            if value not in members:
                raise ParameterError(name, f"must be among {', '.join(members)}")
        return [members[value] for value in texts]

    def choice(self, name: str, among: Sequence[str]) -> str:
        """Return a value among some; the first of them if missing."""
        value = self.text(name)
        if value is not None and value not in among:
            raise ParameterError(name, f"must be among {', '.join(among)}")
        return value or among[0]

    def given(self, *names: str) -> dict[str, list[str]]:
        """Return the values of some names, as parameters of a link to the same list."""
        return {name: self.texts(name, at_most=MAX_VALUES) for name in names}

    def number(self, name: str, *, low: int, high: int, default: int) -> int:
        """Return a whole number within bounds."""
        number = self._read(name, _whole, "must be a whole number")
        if number is not None and not low <= number <= high:
            raise ParameterError(name, f"must be from {low} to {high}")
        return default if number is None else number

    def whole(self, name: str) -> int | None:
        """Return a whole number of four bytes, None if missing."""
        return self.number(name, low=-(2**31), high=2**31 - 1, default=0) if name in self else None

    def decimal(self, name: str) -> float | None:
        """Return a number, None if missing."""
        return self._read(name, _finite, "must be a finite number")

    def duration(self, name: str) -> timedelta | None:
        """Return a duration such as `90s`, None if missing."""
        return self._read(name, read_duration)

    def instant(self, name: str) -> datetime | None:
        """Return a time in ISO 8601; without an offset it is UTC."""
        return self._read(name, _instant, "must be a time such as 2026-01-31 or 2026-01-31T12:00:00+01:00")

    def _read(self, name: str, read: Callable[[str], T], reason: str | None = None) -> T | None:
        """Return the value of a name, None if missing. `reason`: of a refusal; the error's text by default."""
        value = self.text(name)
        try:
            return None if value is None else read(value)
        except (ValueError, OverflowError) as error:
            raise ParameterError(name, reason or str(error)) from None

    def flag(self, name: str) -> bool:
        """Return whether a name has the value 1."""
        return self.choice(name, ("", "1")) == "1"

    def job_ids(self, name: str, model: JobClass, *, at_most: int = MAX_VALUES) -> list[Any]:
        """Return the values of a name as ids of a queue."""
        return [_job_id(name, value, model) for value in self.texts(name, at_most=at_most)]

    def job_id(self, name: str, model: JobClass) -> Any:
        """Return the value of a name as an id of a queue, None if missing."""
        job_ids = self.job_ids(name, model, at_most=1)
        return job_ids[0] if job_ids else None

    def document(self, name: str, *, longest: int = MAX_TEXT) -> Any:
        """Return a JSON document, None if missing."""
        value = self.text(name, longest=longest)
        if value is None:
            return None
        try:
            document = json.loads(value)
            json.dumps(document, allow_nan=False, ensure_ascii=False).encode()
        except (ValueError, RecursionError):  # a lone surrogate, too
            raise ParameterError(name, 'must be JSON such as {"order_id": 7}') from None
        if "\\u0000" in value:
            raise ParameterError(name, "has a character that PostgreSQL does not store")
        return document

    @classmethod
    def of_form(cls, items: Iterable[tuple[str, Any]]) -> Params:
        """Return the parameters of an act's form.

        The field `what` has the subject of the form as one JSON document in ASCII, because a browser changes line ends in
        the values of a form. Fields that people fill in, and checkboxes, are beside it. Raises: ParameterError.
        """
        fields = list(items)
        if len(fields) > MAX_VALUES + 50:
            raise ParameterError("form", f"may have at most {MAX_VALUES} rows")
        flat: list[tuple[str, Any]] = []
        for name, value in fields:
            if name not in {"what", "ids"}:
                flat.append((name, value))
                continue
            if not isinstance(value, str):
                raise ParameterError(name, "must be text, not a file")
            try:
                read = json.loads(value)
            except (ValueError, RecursionError):
                raise ParameterError(name, "must be JSON") from None
            if name == "ids" and isinstance(read, str):
                read = {"id": read}
            if not isinstance(read, dict):
                raise ParameterError(name, "must be a JSON object")
            for key, values in read.items():
                for text in values if isinstance(values, list) else [values]:
                    if not isinstance(text, str):
                        raise ParameterError(name, "may have only texts")
                    flat.append((key, text))
        return cls(flat)


def _whole(text: str) -> int:
    if len(text) > 20 or not re.fullmatch("-?[0-9]+", text):
        raise ValueError
    return int(text)


def _finite(text: str) -> float:
    number = float(text)
    if not isfinite(number):
        raise ValueError
    return number


def _instant(text: str) -> datetime:
    instant = datetime.fromisoformat(text)
    return (instant if instant.tzinfo else instant.replace(tzinfo=UTC)).astimezone(UTC)


def _check_text(name: str, value: str, longest: int) -> None:
    if len(value) > longest:
        raise ParameterError(name, f"may have at most {longest:,} characters")
    if "\x00" in value or any("\ud800" <= char <= "\udfff" for char in value):
        raise ParameterError(name, "has a character that PostgreSQL does not store")


def _job_id(name: str, value: str, model: JobClass) -> Any:
    if model.__jobqueue__.id_type == "text":
        return value
    try:
        return UUID(value)
    except ValueError:
        raise ParameterError(name, "must be a UUID") from None

"""Texts in a database whose encoding is not UTF-8: what it cannot store is found before it is sent.

The server refuses such a text too, but names neither the field nor the character; and of a statement for many rows it
refuses all.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Engine

_PYTHON_NAMES: Final = {"SQL_ASCII": "ascii", "KOI8R": "koi8_r", "KOI8U": "koi8_u", "EUC_TW": "", "MULE_INTERNAL": ""}


@dataclass(frozen=True, slots=True)
class Encoding:
    """The encoding of a database that is not UTF-8."""

    name: str
    """Name in PostgreSQL."""
    codec: str
    """Name of the codec in Python."""

    def fault(self, text: str) -> str | None:
        """Return why the database cannot store a text, or None where it can."""
        try:
            text.encode(self.codec)
        except UnicodeEncodeError as error:
            lacking = f"contains {text[error.start]!a}, which the database's encoding {self.name} does not have"
            return f"{lacking}; use a UTF8 database"
        return None

    def fault_in(self, value: object) -> str | None:
        """Return the same for a JSON value."""
        return self.fault(json.dumps(value, ensure_ascii=False))

    def escaped(self, value: Any) -> Any:
        """Return a JSON value with what the database cannot store written as backslash escapes."""
        if isinstance(value, str):
            return value.encode(self.codec, "backslashreplace").decode(self.codec)
        if isinstance(value, Mapping):
            return {self.escaped(key): self.escaped(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.escaped(item) for item in value]
        return value


_known: Final[WeakKeyDictionary[Engine, Encoding | None]] = WeakKeyDictionary()


def encoding_of(connection: Connection) -> Encoding | None:
    """Return the encoding of a connection's database; None for UTF-8, and where the driver does not report it.

    The server reports it when a connection is made, so this costs no statement; it is looked up once for each engine.
    """
    engine = connection.engine
    if engine not in _known:
        _known[engine] = _named(_reported(connection))
    return _known[engine]


def _reported(connection: Connection) -> str | None:
    driver: Any = connection.connection.driver_connection
    if settings := getattr(driver, "get_settings", None):  # asyncpg
        return getattr(settings(), "server_encoding", None)
    info = getattr(driver, "info", None)  # psycopg, psycopg2
    status = getattr(info, "parameter_status", None)
    return None if status is None else status("server_encoding")


def _named(name: str | None) -> Encoding | None:
    if name is None or name == "UTF8":
        return None
    codec = _PYTHON_NAMES.get(name, name.replace("WIN", "cp"))
    try:
        return Encoding(name, codecs.lookup(codec).name)
    except LookupError:
        return None

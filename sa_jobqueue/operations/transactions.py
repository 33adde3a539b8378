"""The transactions of operations: where their statements go, and which of the driver's errors mean something."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Final

from sqlalchemy import Connection, Update, inspect, update
from sqlalchemy.exc import DBAPIError, StatementError
from sqlalchemy.orm import Mapper, Session

from sa_jobqueue.errors import ConflictError, IllegalTransitionError, InvalidJobError, InvalidOptionError, require_postgresql
from sa_jobqueue.errors.drivers import REFERENCED, Diagnosis, diagnose
from sa_jobqueue.statements._arrays import UnwritableElementError


def require_transaction(connection: Connection, operation: str) -> None:
    """Refuse a connection in AUTOCOMMIT, on which each statement gives up its locks when it ends.

    No round trip: each of the supported drivers knows. Raises: InvalidOptionError.
    """
    driver = connection.connection.dbapi_connection
    if driver is not None and driver.autocommit:
        raise InvalidOptionError(
            "session",
            f"is in AUTOCOMMIT, and {operation} needs a transaction: use an engine with another isolation_level, such as "
            "READ COMMITTED; nothing was written",
        )


def queue_connection(session: Session, model: type[Any]) -> Connection:
    """Return the session's connection for writes to the queue of `model`.

    It is that of the class among `binds`; the clause makes a `get_bind` that separates writes choose the primary.
    Raises: as `check_connection`.
    """
    connection = session.connection(bind_arguments=_bind_arguments(model))
    check_connection(connection, model)
    return connection


def check_connection(connection: Connection, model: type[Any]) -> None:
    """Check that a connection can write to the queue of `model`.

    Raises: UnsupportedServerError without PostgreSQL; InvalidOptionError for a `schema_translate_map` of its tables.
    """
    options = connection.get_execution_options()
    if connection.dialect.name != "postgresql" or "schema_translate_map" in options:
        require_postgresql(connection.dialect.name)
        model.__jobqueue__.check_translation(options)


@contextmanager
def on_queue(session: Session, model: type[Any]) -> Iterator[None]:
    """Within, send the session's statements for the queue, reads included, to the bind of `queue_connection`.

    A session with `binds`, or with a `get_bind` that sends reads to a replica, would otherwise choose by each statement: the
    queue's other classes are not in `binds`, its functions and locks belong to no class, and a replica is late. What belongs
    to other classes, as in a flush, goes where the session sends it.
    """
    chosen = session.get_bind
    bind = chosen(**_bind_arguments(model))
    layout = model.__jobqueue__

    def get_bind(mapper: Any = None, *args: Any, **arguments: Any) -> Any:
        mapped_class = None if mapper is None else inspect(mapper).class_
        is_of_queue = mapped_class is None or getattr(mapped_class, "__jobqueue__", None) is layout
        return bind if is_of_queue and not session._flushing else chosen(mapper, *args, **arguments)

    model.__jobqueue__.check_translation(bind.get_execution_options())
    session.get_bind = get_bind  # type: ignore[method-assign]
    try:
        yield
    finally:
        if session.__dict__.get("get_bind") is get_bind:
            del session.get_bind


def _bind_arguments(model: type[Any]) -> Any:
    mapper, clause = _mapped(model)  # type: ignore[arg-type]
    return {"mapper": mapper, "clause": clause}


@lru_cache(maxsize=256)
def _mapped(model: type[Any]) -> tuple[Mapper[Any], Update]:
    mapper = inspect(model)
    return mapper, update(mapper.local_table)


@contextmanager
def translated() -> Iterator[None]:
    """Raise ours for the driver errors we know, the cause chained; let every other through as it is.

    Raises: IllegalTransitionError (SQLSTATE SJ001, the queue's own), InvalidJobError (SJ002, SJ003, check
    violations, values that a column cannot have, texts that the database's encoding does not have), ConflictError (unique
    and foreign key violations), InvalidOptionError (values that cannot be written or read with the session's settings).
    """
    try:
        yield
    except NotImplementedError as error:  # psycopg's readers of instants and intervals
        setting = "intervalstyle" if "IntervalStyle" in str(error) else "datestyle"
        value = "postgres" if setting == "intervalstyle" else "ISO"
        raise _of_setting(setting, value, str(error)) from error
    except UnicodeEncodeError as error:
        character = error.object[error.start]
        if "\ud800" <= character <= "\udfff":
            reason = f"contains the lone surrogate {character!a}, which PostgreSQL cannot store; remove or replace it"
        else:
            reason = f"contains {character!a}, which the session's client_encoding does not have; set it to UTF8"
        raise InvalidJobError("job", reason) from error
    except UnicodeDecodeError as error:
        raise _of_setting("client_encoding", "UTF8", str(error)) from error
    except StatementError as error:
        if isinstance(error.orig, UnwritableElementError):
            raise InvalidJobError(_array_of(error.params, error.orig.element), str(error.orig)) from error
        if not isinstance(error, DBAPIError):
            raise
        diagnosis = diagnose(error)
        message, constraint = diagnosis.message, diagnosis.constraint or ""
        match diagnosis.sqlstate:
            case "SJ001":
                raise IllegalTransitionError(message) from error
            case "SJ002" | "SJ003":
                raise InvalidJobError(diagnosis.column or "job", message) from error
            case "22P05":
                raise InvalidJobError("job", f"{message}; use a UTF8 database") from error
            case "22P02" | "22007" if '"NULL"' in message:
                raise _of_setting("array_nulls", "on", message) from error
            case "22P02":
                raise InvalidJobError(_field_of(error, diagnosis), message) from error
            case "23514":
                raise InvalidJobError(constraint, message) from error
            case state if state in REFERENCED:
                raise ConflictError(message, constraint) from error
            case "23505":
                raise ConflictError(f"{message}; another row holds that key", constraint) from error
        raise


_INSERT: Final = re.compile(r"INSERT INTO .*?\((.*?)\)\s+(?:VALUES \((.*?)\)$|SELECT|VALUES)", re.DOTALL | re.MULTILINE)
"""The columns and the values of an INSERT."""
_VALUE: Final = re.compile(r'"(.*)"', re.DOTALL)
"""The value that the server could not read, in its message."""
_OF_COPY: Final = re.compile(r"COPY .*, line \d+, column (.*?)(?::|$)", re.MULTILINE)


def _field_of(error: DBAPIError, diagnosis: Diagnosis) -> str:
    """Return the column with a value that the server could not read, or "job" if it is not certain.

    The server names neither column nor parameter, but a COPY: the parameter that has the value is searched for.
    """
    if of_copy := _OF_COPY.search(diagnosis.context or ""):
        return of_copy[1].strip('"')
    insert, value = _INSERT.search(error.statement or ""), _VALUE.search(diagnosis.message)
    if insert is None or value is None:
        return "job"
    columns = [name.strip().strip('"') for name in insert[1].split(",")]
    names = {name for name, parameter in _named(error.params, insert[2]) if _has_value(parameter, value[1])}
    if len(names) != 1:
        return "job"
    (name,) = names
    return columns[name] if isinstance(name, int) else name if name in columns else "job"


def _array_of(parameters: Any, element: object) -> str:
    """Return the name of the array parameter with this very object."""
    arrays = [(name, array) for name, array in _named(parameters, None) if isinstance(array, list | tuple)]
    return next((str(name) for name, array in arrays if any(value is element for value in array)), "job")


def _named(parameters: Any, values: str | None) -> Iterator[tuple[str | int, Any]]:
    """Yield the parameters of an INSERT by name, or by the position of their columns if the driver has none."""
    for row in parameters if isinstance(parameters, list) else [parameters]:
        if isinstance(row, Mapping):
            yield from row.items()
        elif row is not None and values is not None:
            for position, placeholder in enumerate(values.split(",")):
                if number := re.search(r"\$(\d+)", placeholder):
                    yield position, row[int(number[1]) - 1]


def _has_value(parameter: Any, value: str) -> bool:
    if isinstance(parameter, str) and parameter.startswith("{"):  # the text of an array
        return value in parameter[1:-1].replace('"', "").split(",")
    return value in map(str, parameter if isinstance(parameter, list | tuple) else [parameter])


def _of_setting(setting: str, value: str, reason: str) -> InvalidOptionError:
    return InvalidOptionError(
        "session",
        f"its {setting} is not {value}: {reason}. Set it with the engine: "
        f'create_engine(url, connect_args={{"options": "-c {setting}={value}"}})',
    )

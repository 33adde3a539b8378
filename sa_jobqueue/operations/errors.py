"""Driver errors that mean something to a caller, translated once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import DBAPIError

from sa_jobqueue.errors import ConflictError, IllegalTransitionError, InvalidJobError, InvalidOptionError
from sa_jobqueue.errors.drivers import diagnose


@contextmanager
def translated() -> Iterator[None]:
    """Raise ours for the driver errors we know, the cause chained; let every other through as it is.

    Raises: IllegalTransitionError (SQLSTATE SJ001, the queue's own), InvalidJobError (SJ002, SJ003, check
    violations, texts that the database's encoding does not have), ConflictError (unique and foreign key violations),
    InvalidOptionError (values that cannot be written or read with the session's settings).
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
    except DBAPIError as error:
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
                raise InvalidJobError("id", message) from error
            case "23514":
                raise InvalidJobError(constraint, message) from error
            case "23503":
                raise ConflictError(message, constraint) from error
            case "23505":
                raise ConflictError(f"{message}; another row holds that key", constraint) from error
        raise


def _of_setting(setting: str, value: str, reason: str) -> InvalidOptionError:
    return InvalidOptionError(
        "session",
        f"its {setting} is not {value}: {reason}. Set it with the engine: "
        f'create_engine(url, connect_args={{"options": "-c {setting}={value}"}})',
    )

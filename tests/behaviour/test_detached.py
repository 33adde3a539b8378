"""A connection apart from its pool is closed at the end of its block, whatever ends it."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Engine, event, text

from sa_jobqueue.db.detached import detached


class Interrupt(BaseException):
    """Comes as Ctrl-C does, in the middle of a statement."""


@pytest.mark.parametrize("error", [None, ValueError, Interrupt])
def test_a_detached_connection_is_closed_whatever_ends_its_block(engine: Engine, error: type[BaseException] | None) -> None:
    def fail(cursor: Any, statement: str, parameters: Any, context: Any) -> None:
        if error is not None:
            raise error

    caught: BaseException | None = None
    try:
        with detached(engine, isolation_level="AUTOCOMMIT") as connection:
            dbapi_connection: Any = connection.connection.dbapi_connection
            event.listen(engine, "do_execute", fail)
            try:
                connection.execute(text("SELECT 1"))
            finally:
                event.remove(engine, "do_execute", fail)
    except BaseException as raised:
        caught = raised
    assert (type(caught) if caught is not None else None) is error
    assert dbapi_connection.closed

"""An application that uses the database for something else: commits of a row, with or without its own NOTIFY."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psycopg
from protocol import Adapter, Put, main
from sqlalchemy import make_url


class Application(Adapter):
    """One connection; with `notify` "always" each commit notifies a channel without listeners."""

    @asynccontextmanager
    async def producer(self) -> AsyncIterator[Put]:
        """Commit one by one."""
        url = make_url(self.url).set(drivername="postgresql").render_as_string(hide_password=False)
        insert = "INSERT INTO application_row VALUES (%s)"
        if self.orders["notify"] == "always":
            insert = "INSERT INTO application_row SELECT %s FROM pg_notify('application', '')"
        with psycopg.connect(url) as connection:

            async def put(number: int) -> None:
                connection.execute(insert.encode(), [number])
                connection.commit()

            yield put


if __name__ == "__main__":
    main(Application)

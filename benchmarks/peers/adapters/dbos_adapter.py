"""DBOS: a workflow of asynchronous steps, one after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dbos import DBOS
from protocol import Adapter, main


@DBOS.step()
async def note(number: int) -> dict[str, int]:
    """Return the stored rows."""
    return {"number": number}


@DBOS.workflow()
async def many(steps: int) -> None:
    """Run the steps; which are reported by the adapter's callbacks."""
    await note(-1)
    _callbacks["begin"]()
    for number in range(steps):
        await note(number)
    _callbacks["end"]()


_callbacks: dict[str, Callable[[], Any]] = {}


class DBOSSystem(Adapter):
    """Its system database is the one that is measured."""

    async def setup(self) -> None:
        """Let it create its tables."""
        self._launch()
        DBOS.destroy()

    async def steps(self, steps: int, begin: Callable[[], None], end: Callable[[], None]) -> None:
        """Run one workflow."""
        _callbacks.update(begin=begin, end=end)
        self._launch()
        handle = await DBOS.start_workflow_async(many, steps)
        await handle.get_result()

    def _launch(self) -> None:
        DBOS(config={"name": "measured", "system_database_url": self.url, "log_level": "ERROR"})
        DBOS.launch()


main(DBOSSystem)

"""Absurd: a task of asynchronous steps, one after the other.

Its schema comes from `absurdctl init`, which downloads it, or from the file that `ABSURD_SQL` names.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
from absurd_sdk import AsyncAbsurd
from protocol import Adapter, main


class AbsurdSystem(Adapter):
    """One worker on one connection."""

    async def setup(self) -> None:
        """Create its schema and a queue."""
        _create_schema(self.url)
        app = AsyncAbsurd(self.url)
        await app.create_queue("default")
        await app.close()

    async def steps(self, steps: int, begin: Callable[[], None], end: Callable[[], None]) -> None:
        """Run one task."""
        app = AsyncAbsurd(self.url)

        @app.register_task("many")
        async def many(params: Any, ctx: Any) -> None:
            await ctx.step("first", lambda: _note(-1))
            begin()
            for number in range(steps):
                await ctx.step(f"row {number}", lambda number=number: _note(number))
            end()

        await app.spawn("many", {})
        await app.work_batch()
        await app.close()


def _create_schema(url: str) -> None:
    if path := os.environ.get("ABSURD_SQL"):
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(Path(path).read_text())
    else:
        subprocess.run([Path(sys.executable).parent / "absurdctl", "init", "-d", url], check=True)


async def _note(number: int) -> dict[str, int]:
    return {"number": number}


main(AbsurdSystem)

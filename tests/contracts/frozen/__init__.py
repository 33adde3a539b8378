"""The statements of every version of the tables, as the last release of it ran them: what a rolling deploy still runs.

`python -m tests.contracts.frozen` writes those of the latest version. Do it when that version is released, and never again:
workers of that release run on the next version's tables until the last of them is replaced.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
_PARAMETER = re.compile(r"%\((\w+)\)s")


@dataclass(frozen=True)
class Frozen:
    """One statement as text, with the constants that were compiled into its parameters."""

    name: str
    sql: str
    constants: dict[str, Any]

    @property
    def numbered(self) -> str:
        """Return it with `$1` for its first parameter, as PREPARE wants it."""
        names = list(dict.fromkeys(_PARAMETER.findall(self.sql)))
        return _PARAMETER.sub(lambda found: f"${names.index(found[1]) + 1}", self.sql).replace("%%", "%")


def read(version: int) -> dict[str, Frozen]:
    """Read the statements of a version by their names."""
    text = (FOLDER / f"v{version:04}.sql").read_text()
    found = {}
    for part in text.split("-- ")[1:]:
        title, _, sql = part.partition("\n")
        name, _, constants = title.partition(" ")
        found[name] = Frozen(name, sql.strip(), json.loads(constants))
    return found

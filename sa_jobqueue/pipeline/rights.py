"""The advice for a program whose database user lacks rights: which of the roles of `sa-jobqueue grants` it needs."""

from __future__ import annotations

from typing import Any, Final, Literal

_NO_RIGHT: Final = "42501"


def missing_right(error: BaseException, role: Literal["producer", "observer", "operator"]) -> str | None:
    """Return the refusal of a right, with the role that has it; None for any other error.

    `error`: of psycopg or SQLAlchemy. `role`: the one that the program needs.
    """
    driver_error: Any = getattr(error, "orig", None) or error
    if getattr(driver_error, "sqlstate", None) != _NO_RIGHT or not str(driver_error.diag.source_function).startswith(
        "aclcheck"
    ):
        return None  # such as a row that a policy refuses
    return f"{driver_error.diag.message_primary}: grant its user the role jobqueue_{role}, which sa-jobqueue grants creates"

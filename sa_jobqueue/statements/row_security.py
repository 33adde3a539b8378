"""Row-level security: for which statements on the job tables it may hide rows from the current role."""

from __future__ import annotations

from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY

from sa_jobqueue.layout import Layout

_POLICIES: Final = """\
SELECT security.noun, current_user AS role, array_agg(command.name ORDER BY command.place) AS commands,
  bool_and(NOT policy.has_any) AS is_total
FROM unnest(:nouns, :names) AS security (noun, name)
CROSS JOIN LATERAL (SELECT to_regclass(security.name)::oid AS oid) AS relation
CROSS JOIN (VALUES (1, 'SELECT', 'r'), (2, 'INSERT', 'a'), (3, 'UPDATE', 'w'), (4, 'DELETE', 'd'))
  AS command (place, name, code)
CROSS JOIN LATERAL (
  SELECT COALESCE(bool_or(polpermissive), false) AS has_any,
    COALESCE(bool_or(polpermissive AND is_true), false) AND COALESCE(bool_and(polpermissive OR is_true), true) AS allows_all
  FROM pg_catalog.pg_policy
  CROSS JOIN LATERAL (SELECT
    (command.code = 'a' OR pg_get_expr(polqual, polrelid) = 'true')
    AND (command.code IN ('r', 'd') OR pg_get_expr(COALESCE(polwithcheck, polqual), polrelid) = 'true') AS is_true) AS e
  WHERE polrelid = relation.oid AND polcmd::text IN ('*', command.code)
    AND EXISTS (SELECT FROM unnest(polroles) AS member (oid) WHERE member.oid = 0 OR pg_has_role(member.oid, 'USAGE'))
) AS policy
WHERE relation.oid IS NOT NULL AND row_security_active(relation.oid) AND NOT policy.allows_all
GROUP BY security.noun ORDER BY security.noun"""


def hiding(layout: Layout, nouns: list[str]) -> sa.TextClause:
    """Return the tables of a queue of which row-level security may hide rows from the current role.

    It may where it applies to the role, which is neither the owner of the table, unless FORCE is on, nor has BYPASSRLS, and
    no policy lets the role see and write every row.
    Shape: `(noun, role, commands, is_total)`, by noun: the name of the table without the queue's prefix, the commands for
    which that holds, and whether there is no policy for them, so that every row is hidden. Locks: none.
    """
    names = [layout.qualified(noun) for noun in nouns]
    kind: Any = ARRAY(sa.Text)
    return sa.text(_POLICIES).bindparams(sa.bindparam("nouns", nouns, type_=kind), sa.bindparam("names", names, type_=kind))


def is_active(layout: Layout) -> sa.Select[bool]:
    """Return whether row-level security applies to the current role on the job table. Shape: one row. Locks: none."""
    return sa.select(sa.func.row_security_active(sa.literal(layout.qualified("job"), sa.Text), type_=sa.Boolean))

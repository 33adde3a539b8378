"""How each statement is planned in the states that make plans go wrong: by which index, and how much it reads.

A queue swings between empty and huge faster than statistics follow. A statement of the hot path was prepared on a table
that was empty, and is run with that plan when there is a backlog; the generic plan is the one that a driver's prepared
statement uses in the long run.
"""

from __future__ import annotations

import pytest

from sa_jobqueue import statements
from tests.statements.cases import CASES
from tests.statements.conftest import State
from tests.statements.shapes import Case

PER_ROW = 60
PER_ROW_READ = 6
AT_ALL = 400
"""Buffers a statement may touch: so many a row returned, a row looked at where that is its purpose, and besides."""

LISTINGS = {"list_jobs", "list_chains", "list_chain_jobs", "list_blockers", "list_blocked_jobs", "count_continuations"}
HOT = [case for case in CASES if case.guarded or case.name in {"complete_one", "mark_awaited"} | LISTINGS]


@pytest.mark.parametrize("case", HOT, ids=lambda case: case.name)
def test_statement_cost_is_bounded_whatever_the_table_holds(state: State, case: Case) -> None:
    """Jobs are read by the indexes that its docstring names."""
    plan = state.prepared[case.name].explain(case.parameters(state.world))
    assert plan.buffers <= PER_ROW * plan.rows + PER_ROW_READ * case.examines + AT_ALL, plan.shape
    if not case.indexes:
        return
    assert plan.scans("job") <= case.indexes, plan.shape
    module, function = case.build.__code__.co_names[:2]
    documented = getattr(getattr(statements, module), function).__doc__
    for index in case.indexes:
        assert ("primary key" if index == "pk_job" else index) in documented or index == "pk_job", index

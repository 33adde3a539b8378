"""Statements of maintenance, as text: they cannot be prepared, and so are none of `tests/statements`."""

from __future__ import annotations

from sa_jobqueue.layout import Layout
from sa_jobqueue.statements import maintenance as statements


def test_maintenance_statements_use_qualified_and_prefixed_names() -> None:
    layout = Layout(schema="order", prefix="mail_")
    statement_list = [
        statements.vacuum(layout, "mail_job", analyze=True),
        statements.vacuum(layout, "mail_job", analyze=False),
    ]
    statement_list += [
        statements.reindex(layout, "mail_ix_job_claim"),
        statements.drop_index(layout, "mail_ix_job_claim_ccnew"),
    ]
    assert [str(statement) for statement in statement_list] == [
        'VACUUM (ANALYZE) "order".mail_job',
        'VACUUM "order".mail_job',
        'REINDEX INDEX CONCURRENTLY "order".mail_ix_job_claim',
        'DROP INDEX CONCURRENTLY IF EXISTS "order".mail_ix_job_claim_ccnew',
    ]

"""The statements of retention, in the shape of `cases`."""

from __future__ import annotations

from datetime import timedelta

from sa_jobqueue import Job
from sa_jobqueue.settings import Retention, RetentionRules
from sa_jobqueue.statements import retention
from tests.statements.shapes import NOBODY, PK, Case

_CHAINS = RetentionRules(default=Retention(completed=timedelta(days=30)), types={"mail": Retention(dead=timedelta(days=90))})
_RULES = {"rules": _CHAINS.document()}
_LETTERS = RetentionRules(
    default=Retention(dead_letters=timedelta(days=90)), types={"mail": Retention(dead_letters=timedelta(days=30))}
)
_DEAD_LETTERS = {"rules": _LETTERS.document(), "scan": 500, "shortest": timedelta(days=30)}
_PAGE_OF_CHAINS = _RULES | {"scan": 500, "shortest": timedelta(days=30)}

NONE: frozenset[str] = frozenset()

RETENTION_CASES = [
    Case(
        "prune_scan_first",
        lambda: retention.expired_chains(Job, first=True),
        PK,
        lambda world: _PAGE_OF_CHAINS,
        examines=500,
    ),
    Case(
        "prune_scan",
        lambda: retention.expired_chains(Job, first=False),
        PK,
        lambda world: _PAGE_OF_CHAINS | {"after": NOBODY},
        examines=500,
    ),
    Case(
        "prune_dead_letters_first",
        lambda: retention.expired_dead_letters(Job, first=True),
        PK,
        lambda world: _DEAD_LETTERS,
        examines=500,
    ),
    Case(
        "prune_dead_letters",
        lambda: retention.expired_dead_letters(Job, first=False),
        PK,
        lambda world: _DEAD_LETTERS | {"after": NOBODY},
        examines=500,
    ),
    Case(
        "prune_audit",
        lambda: retention.expired_audit(Job, first=False),
        NONE,
        lambda world: {"scan": 500, "shortest": timedelta(days=30), "after": NOBODY},
        examines=500,
    ),
    Case("delete_audit", lambda: retention.delete_audit(Job), NONE, lambda world: {"ids": world.pending[:100]}),
    Case("delete_dead_letters", lambda: retention.delete_dead_letters(Job), PK, lambda world: {"ids": world.pending[:100]}),
    Case(
        "prune_lock_roots",
        lambda: retention.roots(Job, lock=True),
        PK,
        lambda world: _RULES | {"ids": world.pending[:100]},
        examines=100,
    ),
    Case(
        "prune_roots",
        lambda: retention.roots(Job, lock=False),
        PK,
        lambda world: _RULES | {"ids": world.pending[:100]},
        examines=100,
    ),
    Case("prune_has_archive", lambda: retention.has_archive(Job), NONE, lambda world: {}),
    Case(
        "prune_archived_chains",
        lambda: retention.archived_chains(Job),
        NONE,
        lambda world: {"ids": world.pending[:100]},
    ),
    Case(
        "prune_dead_letter_chains",
        lambda: retention.dead_letter_chains(Job),
        NONE,
        lambda world: {"ids": world.pending[:100]},
    ),
    Case(
        "prune_share_roots",
        lambda: retention.share_roots(Job),
        PK,
        lambda world: {"ids": world.pending[:100]},
        examines=100,
    ),
    Case(
        "prune_lengths",
        lambda: retention.lengths(Job),
        frozenset({"uq_job_chain"}),
        lambda world: {"ids": world.pending[:100]},
        examines=100,
    ),
    Case(
        "prune_waited_for",
        lambda: retention.waited_for(Job),
        frozenset(),
        lambda world: {"job_ids": world.waiting[:100]},
        examines=100,
    ),
]

"""How long ended chains are kept: the ages that are refused, and the parameters of statements."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.policies.retention import FOREVER, Retention, RetentionRules

DAY = timedelta(days=1)


@pytest.mark.parametrize("name", ["completed", "cancelled", "dead", "dead_letters", "audit"])
def test_an_age_is_a_duration_from_zero_to_the_longest(name: str) -> None:
    for age in (timedelta(0), DAY, FOREVER):
        assert getattr(Retention(**{name: age}), name) == age
    for wrong, reason in ((7, "must be a timedelta, got 7"), (-DAY, "got -1 day"), (FOREVER + DAY, "from 0 to 36,500 days")):
        ages: Any = {name: wrong}
        with pytest.raises(InvalidOptionError, match=reason) as refused:
            Retention(**ages)
        assert refused.value.option == f"retention.{name}"


def test_the_shortest_age_of_any_rule_is_the_first_to_prune() -> None:
    assert RetentionRules().shortest == {}
    rules = RetentionRules(
        default=Retention(completed=9 * DAY, dead_letters=8 * DAY, audit=DAY),
        queues={"mail": Retention(cancelled=5 * DAY, dead_letters=3 * DAY)},
        types={"report": Retention(dead=4 * DAY, completed=FOREVER, dead_letters=FOREVER)},
    )
    assert rules.shortest == {"jobs": 4 * DAY, "dead_letters": 3 * DAY, "audit": DAY}
    unlimited = RetentionRules(default=Retention(completed=FOREVER, dead_letters=FOREVER))
    assert unlimited.shortest == {}


def test_retention_rules_become_a_document_of_the_ages_that_are_set() -> None:
    rules = RetentionRules(
        default=Retention(completed=DAY, dead_letters=FOREVER),
        queues={"mail": Retention(cancelled=timedelta(microseconds=1))},
        types={"report": Retention(dead=2 * DAY), "invoice": Retention(audit=DAY)},
    )
    assert rules.document() == {
        "types": {"report": {"dead": "172800000000 microseconds"}, "invoice": {}},
        "queues": {"mail": {"cancelled": "1 microseconds"}},
        "default": {"completed": "86400000000 microseconds", "dead_letters": "3153600000000000 microseconds"},
    }

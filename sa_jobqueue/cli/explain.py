"""`sa-jobqueue explain`: explain why a job is not running, or its state."""

from __future__ import annotations

from dataclasses import asdict, replace
from datetime import timedelta
from typing import Final

import click
from rich.text import Text
from rich.tree import Tree

from sa_jobqueue.cli import _options as opts
from sa_jobqueue.cli._output import fields_of, print_result, shown
from sa_jobqueue.operations import Explanation, explain_job
from sa_jobqueue.policies.fairness import QueueKey

_DEEP: Final = 4
"""Levels of blockers in the tree; the sentence always follows them to the end."""


@click.command()
@click.argument("job_id", metavar="JOB_ID")
@opts.heartbeat_timeout_option
@opts.explain_timeout_option
@opts.reading
def explain(database: opts.Database, /, *, job_id: str, heartbeat_timeout: timedelta, timeout: timedelta) -> None:
    """Explain why JOB_ID is not running, or its state: one cause, the evidence, and what to do."""
    database = replace(database, timeout=timeout)
    options = {"heartbeat_timeout": heartbeat_timeout, "timeout": timeout}
    explanation = database.run(explain_job, database.job_id(job_id), **options)
    place = QueueKey(explanation.queue, explanation.fairness_key).label
    title = f"{explanation.type_name} {explanation.job_id} in queue {place}: {_state(explanation)}"
    if explanation.status is None:
        title = f"job {explanation.job_id} ({explanation.cause})"
    tree = Tree(Text("waits for"))
    _grow(tree, explanation, _DEEP)
    print_result(
        asdict(explanation),
        explanation.sentence,
        fields_of(title, explanation.evidence),
        *([tree] if explanation.blockers else ()),
    )


def _state(explanation: Explanation) -> str:
    """Return the status, with the cause if it differs."""
    return (
        str(explanation.status)
        if str(explanation.cause) == str(explanation.status)
        else f"{explanation.status} ({explanation.cause})"
    )


def _grow(tree: Tree, explanation: Explanation, levels: int) -> None:
    for blocker in explanation.blockers:
        line = f"{blocker.type_name} {blocker.job_id}: {_state(blocker)}"
        branch = tree.add(Text(shown(line)))
        if levels > 1:
            _grow(branch, blocker, levels - 1)

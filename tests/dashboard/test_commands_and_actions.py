"""Every command of the command line that changes something has an act in the dashboard, or a reason why not."""

from __future__ import annotations

from collections.abc import Iterator

import click

from sa_jobqueue.cli import main
from sa_jobqueue.dashboard.screens import ACTS

ACT_OF = {
    "workers concurrency": ["resize-workers"],
    "workers drain": ["drain-workers"],
    "queues pause": ["pause-queues"],
    "queues resume": ["resume-queues"],
    "queues set": ["upsert-queue"],
    "types pause": ["pause-job-types"],
    "types resume": ["resume-job-types"],
    "types set": ["upsert-job-type"],
    "jobs cancel": ["cancel-jobs"],
    "jobs priority": ["set-priority"],
    "jobs retry": ["trigger-jobs", "redrive-dead-letters"],
    "chains cancel": ["cancel-chains"],
    "chains delete": ["delete-chains"],
    "schedules delete": ["delete-schedules"],
    "schedules pause": ["pause-schedules"],
    "schedules resume": ["resume-schedules"],
    "schedules run": ["run-schedule"],
    "events send": ["send-event"],
    "events delete": ["delete-event"],
    "dead-letters dismiss": ["dismiss-dead-letters"],
    "dead-letters redrive": ["redrive-dead-letters"],
}
WITHOUT_ACT = {
    "queues sync": "it reads the declarations of an application, which a dashboard need not have",
    "schedules sync": "as queues sync",
    "enqueue": "a payload is checked by its handler, which a dashboard need not have",
    "jobs rerun": "it may take another input, as enqueue",
    "dead-letters prune": "retention is the workers' business; it runs for longer than a request",
    "audit prune": "who can act could remove the trace of it",
    "writes prune": "as dead-letters prune",
    "prune": "as dead-letters prune",
    "archive": "it writes files, and runs for longer than a request",
    "vacuum": "it runs for longer than a request, outside a transaction, as the owner of the tables",
    "reindex": "as vacuum",
    "migrate downgrade": "the tables belong to their owner, and to a deployment",
    "migrate prepare": "as migrate downgrade",
    "migrate upgrade": "as migrate downgrade",
    "restamp": "as migrate downgrade",
    "thresholds set": "alerts follow it, and belong to the configuration of a deployment",
    "thresholds silence": "as thresholds set",
    "worker": "it is a process, not a change",
    "demo": "it makes a database of its own",
    "postgres": "as demo",
}
READS = {
    *(
        "workers list",
        "events list",
        "queues list",
        "queues shares",
        "queues show",
        "types list",
        "types show",
        "jobs list",
        "jobs show",
        "explain",
    ),
    *("chains list", "chains show", "schedules explain", "schedules list", "schedules next"),
    *("schedules show", "thresholds list", "trace", "health", "dashboard", "exporter", "grafana", "dead-letters groups"),
    *("dead-letters list", "dead-letters show", "audit list", "writes list", "writes show", "migrate sql"),
    *("migrate version", "grants", "doctor", "deploy check", "jobs rehearse", "dead-letters rehearse"),
}


def commands(group: click.Group, prefix: str = "") -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}", command


def test_each_writing_command_has_a_dashboard_action_or_a_reason_not_to() -> None:
    command_by_name = dict(commands(main))
    assert sorted([*ACT_OF, *WITHOUT_ACT, *READS]) == sorted(command_by_name)
    assert {act for acts in ACT_OF.values() for act in acts} <= set(ACTS)
    # What names its actor, or can be tried without a change, changes something.
    for name, command in command_by_name.items():
        if {"by", "dry_run"} & {option.name for option in command.params}:
            assert name not in READS, name

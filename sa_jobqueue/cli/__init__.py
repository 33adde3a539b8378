"""`sa-jobqueue`, the command line: a group whose commands are imported when they are called.

Exit status: 0 done; 1 an error of ours, or a check that failed; 2 a command that was not understood.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Final

import click
from sqlalchemy.exc import DBAPIError

from sa_jobqueue import __version__
from sa_jobqueue.errors import JobQueueError
from sa_jobqueue.printable import printable

_COMMANDS: Final = {
    "worker": ("sa_jobqueue.cli.worker:worker", "Run jobs with an application's handlers."),
    "workers": ("sa_jobqueue.cli.workers:workers", "List workers, ask them to drain, or to run more or fewer jobs at once."),
    "queues": ("sa_jobqueue.cli.queues:queues", "List, pause and resume queues, and say what they may take."),
    "types": ("sa_jobqueue.cli.types:types", "List, pause and resume job types, and say what they may take."),
    "jobs": ("sa_jobqueue.cli.jobs:jobs", "List, show, retry and cancel jobs, and say which go first."),
    "chains": ("sa_jobqueue.cli.chains:chains", "List, show, cancel and delete chains, and what they wait for."),
    "schedules": ("sa_jobqueue.cli.schedules:schedules", "List, pause, resume and run schedules; when they fire next."),
    "explain": ("sa_jobqueue.cli.explain:explain", "Say why a job is not running, down to what it waits for in the end."),
    "trace": ("sa_jobqueue.cli.trace:trace", "Show how a chain went, as a tree of attempts with times."),
    "health": ("sa_jobqueue.cli.health:health", "Say what is wrong with the queue, and who holds back vacuum."),
    "top": ("sa_jobqueue.cli.top:top", "Watch the queue in the terminal."),
    "exporter": ("sa_jobqueue.cli.exporter:exporter", "Serve the queue's figures to Prometheus."),
    "dashboards": ("sa_jobqueue.cli.dashboards:dashboards", "Write a Grafana dashboard, and alert rules for Prometheus."),
    "dead-letters": ("sa_jobqueue.cli.dead_letters:dead_letters", "List, group, redrive, dismiss and prune dead letters."),
    "archive": ("sa_jobqueue.cli.archive:archive", "Move finished chains to Parquet files."),
    "optimize": ("sa_jobqueue.cli.maintenance:optimize", "Vacuum and rebuild what is worth it."),
    "vacuum": ("sa_jobqueue.cli.maintenance:vacuum", "Vacuum the tables, and say who keeps dead rows."),
    "reindex": ("sa_jobqueue.cli.maintenance:reindex", "Build indexes anew while everybody works."),
    "prune": ("sa_jobqueue.cli.prune:prune", "Delete chains that ended long enough ago."),
    "report": ("sa_jobqueue.cli.report:report", "Make one page about how a queue has been doing."),
    "migrate": ("sa_jobqueue.cli.migrate:migrate", "Create and upgrade the queue's tables without Alembic."),
    "grants": ("sa_jobqueue.cli.grants:grants", "Print or make roles that may enqueue, work, read or operate, and no more."),
    "demo": ("sa_jobqueue.cli.demo.command:demo", "See it at work: a database, workers, and a kill -9."),
}


class LazyGroup(click.Group):
    """A group that knows its commands by name and one line each, so that `--help` imports none of them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Name the commands, in the order of the help."""
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command, or return None where there is no such one."""
        if cmd_name not in _COMMANDS:
            return None
        module, _, attribute = _COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write each command's name and line."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in _COMMANDS.items()])

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """Read the arguments, which an error may quote."""
        with _printable_errors():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; print an error of ours, or of the database, in one line and not as a traceback."""
        with _printable_errors():
            return self._invoke(ctx)

    def _invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except JobQueueError as error:
            raise click.ClickException(str(error)) from error
        except DBAPIError as error:
            # Not the whole of it: that quotes the statement with its parameters, payloads among them.
            reason = next(iter(str(error.orig).strip().splitlines()), type(error.orig).__name__)
            raise click.ClickException(f"database error: {reason}") from error


@contextmanager
def _printable_errors() -> Iterator[None]:
    """Let errors that Click prints pass, with what they quote escaped."""
    try:
        yield
    except click.ClickException as error:
        error.message = printable(error.message, newline="\n  ")  # type: ignore[misc]
        raise


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(__version__, prog_name="sa-jobqueue")
def main() -> None:
    """Your application's PostgreSQL as its job queue."""

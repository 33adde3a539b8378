"""The `sa-jobqueue` command line: a group that imports each command when it is called.

Exit status: 0 success; 1 an error, or a failed check; 2 a usage error.
"""

from __future__ import annotations

import errno
import io
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from importlib import import_module
from typing import Any, Final

import click
from sqlalchemy.exc import DBAPIError

from sa_jobqueue import __version__
from sa_jobqueue.display.printable import printable
from sa_jobqueue.errors import JobQueueError, NotFoundError
from sa_jobqueue.errors.removed import REMOVED

_SECTIONS: Final = {
    "Run": {
        "worker": ("cli.worker:worker", "Run jobs with an application's handlers."),
        "dashboard": ("cli.dashboard:dashboard", "Serve the dashboard to a browser."),
        "exporter": ("cli.exporter:exporter", "Serve the queue's metrics to Prometheus."),
        "postgres": ("cli.postgres:postgres", "Run a PostgreSQL server for development."),
        "demo": ("cli.demo.command:demo", "Run a demo: a database, workers, and a kill -9."),
    },
    "Look": {
        "health": ("cli.health:health", "Report problems of the queue, with its figures."),
        "explain": ("cli.explain:explain", "Explain why a job is not running."),
        "trace": ("cli.trace:trace", "Show the attempts of a chain as a tree, with times."),
        "audit": ("cli.audit:audit", "List what operators changed, and who did it."),
    },
    "Act": {
        "enqueue": ("cli.enqueue:enqueue", "Enqueue one job."),
        "jobs": ("cli.jobs:jobs", "List, show, rehearse, retry and cancel jobs, and change their priority."),
        "chains": ("cli.chains:chains", "List, show, cancel and delete chains."),
        "dead-letters": ("cli.dead_letters:dead_letters", "List, group, rehearse, redrive, dismiss and prune dead letters."),
        "events": ("cli.events:events", "Send the events that jobs wait for, and list them."),
    },
    "Operate": {
        "queues": ("cli.queues:queues", "List, pause and resume queues, and set their limits."),
        "types": ("cli.types:types", "List, pause and resume job types, and set their limits."),
        "schedules": ("cli.schedules:schedules", "List, pause, resume, run and synchronize schedules."),
        "thresholds": ("cli.health:thresholds", "List and set the thresholds of the health report."),
        "workers": ("cli.workers:workers", "List workers, drain them, or change their concurrency."),
        "prune": ("cli.prune:prune", "Delete chains that ended before a given age."),
        "archive": ("pipeline.cli.archive:archive", "Move finished chains to Parquet files."),
        "writes": ("pipeline.cli.writes:writes", "List bulk writes, show their rejected rows, and prune the ledger."),
        "vacuum": ("cli.maintenance:vacuum", "Vacuum the tables, and show what holds back the xmin horizon."),
        "reindex": ("cli.maintenance:reindex", "Rebuild indexes concurrently."),
        "restamp": ("cli.restamp:restamp", "Give restored rows transaction numbers of this cluster."),
    },
    "Set up": {
        "doctor": ("cli.doctor:doctor", "Check an installation, and print what to change."),
        "deploy": ("cli.deploy:deploy", "Check new code against the jobs in the tables."),
        "migrate": ("cli.migrate:migrate", "Create and upgrade the job tables without Alembic."),
        "grants": ("cli.grants:grants", "Print or create database roles with the least privileges."),
        "grafana": ("cli.grafana:grafana", "Write a Grafana dashboard and Prometheus alert rules."),
    },
}
"""The commands by section of the help: the module and attribute in `sa_jobqueue`, and the help line."""
_COMMANDS: Final = {name: place for section in _SECTIONS.values() for name, (place, _) in section.items()}
_EXAMPLES: Final = {
    "import": "examples/moving_from_procrastinate.py moves the waiting jobs of another queue",
    "report": "examples/flights/figures.py plots a queue's history",
}
"""What replaces commands that people look for, and that are a script to copy here."""

_ERROR_STATUS: Final = {"health": 3}
"""Exit status of all errors of a command whose other statuses are its result, as in the Monitoring Plugins."""
_COMMAND: Final = "sa_jobqueue.command"
"""In a context's `meta`: the name of the command, in a list; empty without one."""
_NO_RIGHT: Final = "42501"
# Up to the last @: a password may contain one that should have been quoted.
_PASSWORD: Final = re.compile(r"(://[^\s:/'\"]*:)[^\s'\"]*@")
_PASSWORD_PARAMETER: Final = re.compile(r"((?:ssl)?password=)[^\s&'\"]+")


class Group(click.Group):
    """A group whose commands have an example in their help, and which suggests a command for one that it does not have."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the arguments name. Raises: click.UsageError with the names that are nearest."""
        name = args[0]
        if name.startswith("-") or ctx.resilient_parsing or self.get_command(ctx, name) is not None:
            return super().resolve_command(ctx, args)
        nearest = get_close_matches(name, self.list_commands(ctx))
        groups = {group: self.get_command(ctx, group) for group in self.list_commands(ctx)}
        # The command that a group has: `retry` is `jobs retry`.
        nearest += [
            f"{group} {name}" for group, has in groups.items() if isinstance(has, click.Group) and name in has.commands
        ]
        hint = f"did you mean {' or '.join(nearest[:3])}?" if nearest else f"{ctx.command_path} --help lists the commands"
        raise click.UsageError(f"no such command {name!r}: {hint}", ctx)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command with its example as the end of its help; None if there is no such command."""
        command = super().get_command(ctx, cmd_name)
        return command and _with_example(command, f"{self.name} {cmd_name}")


class LazyGroup(Group):
    """A group with the name and help line of each command, so that `--help` imports none of them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands, in the order of the help."""
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command; None if there is no such command."""
        if cmd_name in _EXAMPLES:
            raise click.UsageError(f"there is no command {cmd_name!r}: {_EXAMPLES[cmd_name]}")
        if cmd_name not in _COMMANDS:
            return None
        module, _, attribute = _COMMANDS[cmd_name].partition(":")
        command: click.Command = getattr(import_module(f"sa_jobqueue.{module}"), attribute)
        return _with_example(command, cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the name and help line of each command, by section."""
        width = max(map(len, _COMMANDS))
        for section, commands in _SECTIONS.items():
            with formatter.section(section):
                formatter.write_dl([(name.ljust(width), line) for name, (_, line) in commands.items()])

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run a command. Characters that the terminal's encoding lacks are shown as a question mark."""
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                with suppress(OSError):  # a pipe that is open for reading as well
                    stream.reconfigure(errors="replace")
        if sys.stdin is None:  # closed: a question is not answered, and a document is empty
            sys.stdin = io.StringIO()
        return super().main(*args, **kwargs)

    def make_context(self, info_name: str | None, args: list[str], *more: Any, **kwargs: Any) -> click.Context:
        """Parse the arguments. Errors that quote them are escaped."""
        command = args[:1]  # the list is consumed
        with _printable_errors(*command):
            for text in filter(_is_broken, args):
                raise click.UsageError(f"{text!r} has bytes that are not UTF-8")
            for name in ("SA_JOBQUEUE_URL", "DATABASE_URL", "SA_JOBQUEUE_APP"):
                if _is_broken(os.environ.get(name, "")):  # not quoted: it may have a password
                    raise click.UsageError(f"environment variable {name} has bytes that are not UTF-8")
            context = super().make_context(info_name, args, *more, **kwargs)
        context.meta[_COMMAND] = command
        return context

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. Errors of the library or the database are printed on one line, without a traceback."""
        with _printable_errors(*ctx.meta[_COMMAND]):
            try:
                return super().invoke(ctx)
            except click.NoSuchOption as error:
                reason = REMOVED.get(error.option_name.lstrip("-").replace("-", "_"))
                raise error if reason is None else click.UsageError(f"{error.option_name} {reason}", error.ctx) from None
            except JobQueueError as error:
                field = f"{error.field}: " if isinstance(error, NotFoundError) else ""  # of the operation, not the command
                raise click.ClickException(str(error).removeprefix(field)) from error
            except DBAPIError as error:
                # Only the first line: the rest quotes the statement with its parameters, which may include payloads.
                reason = next(iter(str(error.orig).strip().splitlines()), type(error.orig).__name__)
                if getattr(error.orig, "sqlstate", None) == _NO_RIGHT:
                    reason += "; sa-jobqueue doctor --role operator lists the missing rights"
                raise click.ClickException(f"database error: {reason}") from error


def noun_group(name: str) -> click.Group:
    """Return a group of commands, whose help is its line in the help of `sa-jobqueue`."""
    return Group(name, help=next(commands[name][1] for commands in _SECTIONS.values() if name in commands))


def _with_example(command: click.Command, path: str) -> click.Command:
    """Return a command whose help ends with its example, if the table has one."""
    from sa_jobqueue.cli._examples import EXAMPLES

    if path in EXAMPLES and command.epilog is None:
        command.epilog = f"\b\nExample:\n  sa-jobqueue {path} {EXAMPLES[path]}".rstrip()
    return command


def _is_broken(text: str) -> bool:
    """Return whether a text has bytes that Python could not decode."""
    return any("\ud800" <= char <= "\udfff" for char in text)


def masked(text: str) -> str:
    """Return a text with the passwords of the URLs in it hidden."""
    return _PASSWORD_PARAMETER.sub(r"\1***", _PASSWORD.sub(r"\1***@", text))


@contextmanager
def _printable_errors(command: str = "") -> Iterator[None]:
    """Escape control characters in the messages of Click's errors, and hide passwords of URLs; report a full disk.

    `command`: name of the command, which may have an exit status for errors.
    """
    try:
        yield
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python writes the rest when it exits
        raise click.ClickException(f"the output cannot be written: {error.strerror}") from error
    except click.ClickException as error:
        error.exit_code = _ERROR_STATUS.get(command, error.exit_code)  # type: ignore[misc]
        error.message = printable(masked(error.message), newline="\n  ")  # type: ignore[misc]
        raise


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(__version__, prog_name="sa-jobqueue")
def main() -> None:
    """A job queue in your application's PostgreSQL database.

    Set SA_JOBQUEUE_URL to the URL of the database and, if you use your own Job model, SA_JOBQUEUE_APP to your JobQueue, such
    as shop.jobs:jobs. A DURATION is a number with a unit: 500ms, 30s, 15m, 12h, 7d. A TIME is in ISO 8601, UTC by default.
    An ID may be shortened, as narrow tables show it: 0199c3f2..8d21e6. Exit status: 0 success, 1 an error or a failed check,
    2 wrong usage; `health` and `worker` have others, in their help.
    """

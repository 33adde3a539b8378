"""`sa-jobqueue jobs`, `dead-letters` and `migrate`: what they change, what they print, and what they never show."""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from uuid import UUID, uuid4

import click
import pytest
from sqlalchemy import Engine, make_url, text

from sa_jobqueue import JobStatus, __version__, list_jobs
from sa_jobqueue.cli import dead_letters as dead_letters_command
from sa_jobqueue.cli import jobs as jobs_command
from sa_jobqueue.cli import main
from sa_jobqueue.cli._examples import EXAMPLES
from sa_jobqueue.cli._options import duration
from sa_jobqueue.types import DeadReason
from tests.fixtures.chains import Chains
from tests.fixtures.commands import Run, document
from tests.fixtures.jobs import Jobs
from tests.fixtures.programs import Programs
from tests.fixtures.transactions import write


@pytest.mark.slow
def test_help_lists_the_commands_without_importing_them() -> None:
    script = (
        "import sys; from sa_jobqueue.cli import main; main(['--help'], standalone_mode=False); "
        "assert not [name for name in sys.modules if name == 'rich' or name.startswith('sa_jobqueue.cli.')]"
    )
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    for command in ("worker", "jobs", "chains", "dead-letters", "migrate", "demo"):
        assert command in process.stdout


def test_help_groups_the_commands(run: Run) -> None:
    output = run("--help").stdout
    assert [line for line in output.splitlines() if line in {"Run:", "Look:", "Act:", "Operate:", "Set up:"}] == [
        *("Run:", "Look:", "Act:", "Operate:", "Set up:")
    ]
    assert "Commands:" not in output


def leaf_commands(group: click.Group, context: click.Context) -> Iterator[tuple[click.Context, str]]:
    """Yield each command that has no commands: its context, and its help."""
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        inner = click.Context(command, info_name=name, parent=context)
        if isinstance(command, click.Group):
            yield from leaf_commands(command, inner)
        else:
            yield inner, command.get_help(inner)


def test_the_help_of_each_command_has_an_example_that_can_be_parsed() -> None:
    leaves = [*leaf_commands(main, click.Context(main, info_name="sa-jobqueue"))]
    assert len(leaves) > 60
    for context, shown in leaves:
        path = context.command_path
        example = re.search(r"Examples?:\n +sa-jobqueue ((?:.*\\\n)*.*)", shown)
        assert example, path
        line = f"sa-jobqueue {example[1]}".replace("\\\n", " ")
        assert line.startswith(path), path
        arguments = shlex.split(line.removeprefix(path), comments=True)
        context.command.make_parser(click.Context(context.command)).parse_args(arguments)
    assert EXAMPLES.keys() <= {context.command_path.removeprefix("sa-jobqueue ") for context, _ in leaves}


@pytest.mark.parametrize(
    ("command", "suggested"),
    [
        (["job", "list"], "no such command 'job': did you mean jobs?"),
        (["dead_letters"], "no such command 'dead_letters': did you mean dead-letters?"),
        (["redrive"], "no such command 'redrive': did you mean dead-letters redrive?"),
        (["qqq"], "no such command 'qqq': main --help lists the commands"),
        (["jobs", "lst"], "no such command 'lst': did you mean list?"),
        (["migrate", "upgrad"], "no such command 'upgrad': did you mean upgrade"),
        (["jobs", "list", "--quue", "mail"], "--queue"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_a_misspelt_command_or_option_names_the_nearest(run: Run, command: list[str], suggested: str) -> None:
    assert suggested in run(*command, status=2).stderr


def test_a_taken_port_names_the_option_for_a_free_one(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        for command in ("dashboard", "exporter"):
            assert "; pass --port 0 for a free one" in run(command, "--port", port, status=1).stderr


def test_an_error_names_the_option_as_it_is_typed(run: Run, jobs: Jobs) -> None:
    error = run("queues", "set", "mail", "--rate-limit", 5, status=2).stderr
    assert "Error: --rate-period: is needed with a rate limit, such as 1m" in error
    error = run("jobs", "cancel", jobs.add(), "--by", "", status=2).stderr
    assert "Error: --by: must be 1 to 200 printable characters" in error
    run("queues", "show", "mail", status=1)


@pytest.mark.parametrize(
    "arguments", [("queues", "pause"), ("types", "show"), ("workers", "drain"), ("jobs", "list", "--type"), ("enqueue",)]
)
def test_an_argument_whose_bytes_are_not_utf8_is_wrong_usage(run: Run, arguments: tuple[str, ...]) -> None:
    error = run(*arguments, "caf\udce9", status=2).stderr
    assert "Error: 'caf\\udce9' has bytes that are not UTF-8" in error


def test_a_url_whose_bytes_are_not_utf8_is_not_shown(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://shop:secr\udce9t@localhost/shop")
    error = run("health", status=3).stderr
    assert "environment variable DATABASE_URL has bytes that are not UTF-8" in error
    assert "secr" not in error


@pytest.mark.parametrize("command", ["import", "report"])
def test_a_command_that_an_example_replaced_names_the_example(run: Run, command: str) -> None:
    (path,) = re.findall(r"examples/\S+\.py", run(command, "--anything", status=2).stderr)
    assert (Path(__file__).parents[2] / path).exists()


def test_version_is_the_librarys(run: Run) -> None:
    assert run("--version").stdout.split()[-1] == __version__


def test_jobs_list_filters_and_pages(run: Run, jobs: Jobs) -> None:
    first, second, third = jobs.add(), jobs.add(type_name="mail"), jobs.add(queue="slow")
    completed_id = jobs.add(JobStatus.COMPLETED)

    def listed(*arguments: object) -> list[str]:
        return [job["id"] for job in document(run("jobs", "list", "--json", *arguments))["jobs"]]

    assert listed() == [str(job_id) for job_id in (completed_id, third, second, first)]
    assert listed("--status", "completed") == [str(completed_id)]
    assert listed("--type", "mail") == [str(second)]
    assert listed("--queue", "slow") == [str(third)]
    page = document(run("jobs", "list", "--json", "--oldest-first", "--limit", 2))
    assert page["next_after"] == str(second)
    assert listed("--oldest-first", "--after", page["next_after"]) == [str(third), str(completed_id)]


def test_a_filtered_list_fills_its_pages_however_few_jobs_match(
    run: Run, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sa_jobqueue.operations.list_jobs", partial(list_jobs, scan_limit=2))
    mails = []
    for _ in range(3):
        jobs.add_many(3)
        mails.append(str(jobs.add(type_name="mail")))
    listed = document(run("jobs", "list", "--json", "--type", "mail", "--limit", 2))
    assert [job["id"] for job in listed["jobs"]] == mails[:0:-1]
    next_page = document(run("jobs", "list", "--json", "--type", "mail", "--after", listed["next_after"]))
    assert ([job["id"] for job in next_page["jobs"]], next_page["next_after"]) == (mails[:1], None)
    assert "Cancel 3 jobs?" in run("jobs", "cancel", "--type", "mail", input="y\n").stderr
    assert {jobs.status(UUID(job_id)) for job_id in mails} == {JobStatus.CANCELLED}


@pytest.mark.slow
def test_chains_list_filters_and_pages(run: Run, chains: Chains) -> None:
    (first,) = chains.add(JobStatus.PENDING, queue="slow")
    second, its_last = chains.add(JobStatus.COMPLETED, JobStatus.DEAD, type_name="mail", input={"secret": 1})
    (third,) = chains.add(JobStatus.BLOCKED)
    chains.block(third, second)

    def listed(*arguments: object) -> list[str]:
        return [chain["id"] for chain in document(run("chains", "list", "--json", *arguments))["chains"]]

    assert listed() == [str(job_id) for job_id in (third, second, first)]
    assert listed("--status", "dead") == listed("--type", "mail") == listed("--job", its_last) == [str(second)]
    assert listed("--queue", "slow") == [str(first)]
    assert listed("--top-level") == [str(third), str(first)]
    assert listed("--before", "2000-01-01") == []
    assert listed("--since", "2000-01-01", "--limit", 1) == [str(third)]
    page = document(run("chains", "list", "--json", "--oldest-first", "--limit", 2))
    assert listed("--oldest-first", "--after", page["next_after"]) == [str(third)]
    assert "secret" not in run("chains", "list", "--json").stdout
    table = run("chains", "list", "--limit", 2).stdout
    assert f"next page: --after {second}" in table
    assert table.startswith("2 chains")


def test_chains_show_lists_jobs_blockers_and_blocked_jobs(run: Run, chains: Chains) -> None:
    (waited,) = chains.add(JobStatus.DEAD, input={"secret": 1}, type_name="waited")
    root, last = chains.add(JobStatus.COMPLETED, JobStatus.BLOCKED, input={"card": 7})
    (waiting,) = chains.add(JobStatus.BLOCKED, type_name="waiting")
    chains.block(last, waited, on_failure="continue")
    chains.block(waiting, root)
    chain = document(run("chains", "show", root, "--json"))
    assert (chain["chain"]["status"], chain["chain"]["length"], chain["chain"]["input"]) == ("blocked", 2, {"card": 7})
    assert [job["id"] for job in chain["jobs"]] == [str(root), str(last)]
    (blocker,) = chain["blockers"]
    assert (blocker["job_id"], blocker["is_resolved"], blocker["on_failure"]) == (str(last), False, "continue")
    assert (blocker["chain"]["id"], blocker["chain"]["status"]) == (str(waited), "dead")
    assert [job["id"] for job in chain["blocks"]] == [str(waiting)]
    printed = run("chains", "show", root).stdout
    for word in (root, last, waited, waiting, "2 jobs", "blocked by", "blocks", "continue"):
        assert str(word) in printed
    assert "secret" not in printed
    assert f"{last} belongs to chain {root}" in run("chains", "show", last, status=1).stderr
    assert "no such chain" in run("chains", "show", uuid4(), status=1).stderr


def test_jobs_show_names_the_chain_and_the_blockers(run: Run, chains: Chains) -> None:
    (waited,) = chains.add(JobStatus.PENDING)
    root, last = chains.add(JobStatus.COMPLETED, JobStatus.BLOCKED)
    chains.block(last, waited)
    shown = document(run("jobs", "show", last, "--json"))
    assert (shown["chain"]["id"], shown["chain"]["length"]) == (str(root), 2)
    assert [blocker["chain"]["id"] for blocker in shown["blockers"]] == [str(waited)]
    printed = run("jobs", "show", last).stdout
    assert f"chain {root} (test, blocked): job 2 of 2" in printed.replace("\n", " ")
    assert "leased_by" not in printed  # empty fields are in the document only
    assert shown["job"]["leased_by"] is None
    assert str(waited) in printed
    assert [job["id"] for job in document(run("jobs", "list", "--chain", root, "--json"))["jobs"]] == [str(last), str(root)]


def test_json_has_ids_as_text_and_instants_in_iso_8601(run: Run, jobs: Jobs) -> None:
    jobs.add(timeout=timedelta(minutes=2))
    (job,) = document(run("jobs", "list", "--json"))["jobs"]
    assert UUID(job["id"])
    assert datetime.fromisoformat(job["scheduled_at"]).utcoffset() == timedelta(0)
    assert job["timeout"] == 120
    assert "input" not in job


def test_jobs_show_includes_dead_letters_and_escapes_error_text(run: Run, jobs: Jobs) -> None:
    dead = jobs.add(JobStatus.DEAD, input={"card": 7}, error={"type": "Boom", "message": "no \x1b[31mred"})
    job = document(run("jobs", "show", dead, "--json"))
    assert job["job"]["input"] == {"card": 7}
    assert [dead_letter["reason"] for dead_letter in job["dead_letters"]] == ["exhausted"]
    assert str(dead) in run("jobs", "show", dead).stdout
    entries = run("dead-letters", "list").stdout
    assert "\x1b" not in entries  # an error's text must not steer the terminal
    assert "\\x1b[31mred" in entries


def test_jobs_retry_triggers_pending_and_redrives_dead_ones(run: Run, jobs: Jobs) -> None:
    later, dead = jobs.add(due_in=3600), jobs.add(JobStatus.DEAD)
    assert document(run("jobs", "retry", later, dead, "--json")) == {"triggered": [str(later)], "redriven": [str(dead)]}
    assert jobs.status(dead) is JobStatus.PENDING
    assert jobs.get(later)["scheduled_at"] < jobs.get(later)["created_at"] + timedelta(minutes=1)


def test_jobs_retry_refuses_a_completed_job_and_changes_nothing(run: Run, jobs: Jobs) -> None:
    dead, completed_id = jobs.add(JobStatus.DEAD), jobs.add(JobStatus.COMPLETED)
    result = run("jobs", "retry", dead, completed_id, status=1)
    assert (
        f"job {completed_id} is completed: only pending and dead jobs can be retried. No job was changed." in result.stderr
    )
    assert jobs.status(dead) is JobStatus.DEAD


def test_jobs_cancel_by_id_skips_ended_jobs(run: Run, jobs: Jobs) -> None:
    pending, completed_id = jobs.add(), jobs.add(JobStatus.COMPLETED)
    assert document(run("jobs", "cancel", pending, completed_id, "--json")) == {"cancelled": [str(pending)]}
    assert jobs.statuses() == {pending: JobStatus.CANCELLED, completed_id: JobStatus.COMPLETED}


def test_jobs_cancel_names_every_unknown_id(run: Run, jobs: Jobs) -> None:
    pending, unknown_id, other_unknown_id = jobs.add(), uuid4(), uuid4()
    result = run("jobs", "cancel", pending, unknown_id, other_unknown_id, status=1)
    assert result.stderr.strip() == f"Error: no such job: {unknown_id}, {other_unknown_id}; nothing was changed"
    assert jobs.status(pending) is JobStatus.PENDING


def test_jobs_cancel_by_filter_asks_for_confirmation(run: Run, jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs_command, "MAX_PAGE", 2)  # several transactions
    mail, other_id = jobs.add_many(5, type_name="mail"), jobs.add()
    preview = document(run("jobs", "cancel", "--type", "mail", "--dry-run", "--json"))
    assert preview == {"would_be_cancelled": [str(job_id) for job_id in mail]}
    assert "Cancel 5 jobs?" in run("jobs", "cancel", "--type", "mail", input="n\n", status=1).stderr
    assert set(jobs.statuses().values()) == {JobStatus.PENDING}
    run("jobs", "cancel", "--type", "mail", input="y\n")
    assert {jobs.status(job_id) for job_id in mail} == {JobStatus.CANCELLED}
    assert jobs.status(other_id) is JobStatus.PENDING


def test_jobs_cancel_without_a_selection_is_refused(run: Run, jobs: Jobs) -> None:
    pending = jobs.add()
    run("jobs", "cancel", "--yes", status=2)
    run("jobs", "cancel", pending, "--type", "test", "--yes", status=2)
    assert jobs.status(pending) is JobStatus.PENDING


def test_dead_letters_are_listed_grouped_and_shown(run: Run, jobs: Jobs) -> None:
    for _ in range(2):
        jobs.add(JobStatus.DEAD, fingerprint="f1", error={"type": "Boom", "message": "no", "traceback": "at line 3"})
    jobs.add(JobStatus.DEAD, fingerprint="f2", type_name="mail", reason=DeadReason.DISCARDED)
    entries = document(run("dead-letters", "list", "--json"))["dead_letters"]
    assert [dead_letter["reason"] for dead_letter in entries] == ["discarded", "exhausted", "exhausted"]
    groups = document(run("dead-letters", "groups", "--json"))["groups"]
    assert [(group["fingerprint"], group["count"]) for group in groups] == [("f1", 2), ("f2", 1)]
    assert len(document(run("dead-letters", "list", "--json", "--before", "2000-01-01"))["dead_letters"]) == 0
    shown = document(run("dead-letters", "show", entries[1]["id"], "--json"))["dead_letter"]
    assert shown["error"]["traceback"] == "at line 3"
    assert "at line 3" in run("dead-letters", "show", entries[1]["id"]).stdout


@pytest.mark.parametrize(
    "chosen",
    [["--type", "mail"], ["--queue", "slow"], ["--reason", "lost"], ["--fingerprint", "f"]],
    ids=lambda chosen: chosen[0],
)
def test_dead_letters_redrive_by_filter_leaves_the_others(run: Run, jobs: Jobs, chosen: list[str]) -> None:
    matching_id = jobs.add(JobStatus.DEAD, type_name="mail", queue="slow", reason=DeadReason.LOST, fingerprint="f")
    other_id = jobs.add(JobStatus.DEAD)
    run("dead-letters", "redrive", *chosen, "--by", "ann")
    assert (jobs.status(matching_id), jobs.status(other_id)) == (JobStatus.PENDING, JobStatus.DEAD)
    assert [(dead_letter["resolution"], dead_letter["resolved_by"]) for dead_letter in jobs.dead_letters(matching_id)] == [
        ("redriven", "ann")
    ]


def test_dead_letters_redrive_all_works_in_chunks(run: Run, jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letters_command, "MAX_PAGE", 2)
    dead = [jobs.add(JobStatus.DEAD) for _ in range(5)]
    entries = [str(job_id) for job_id in dead]
    preview = document(run("dead-letters", "redrive", "--all", "--dry-run", "--json"))
    assert preview == {"would_be_redriven": entries}
    assert {jobs.status(job_id) for job_id in dead} == {JobStatus.DEAD}
    assert document(run("dead-letters", "redrive", "--all", "--json")) == {"redriven": entries, "conflicts": []}
    assert {jobs.status(job_id) for job_id in dead} == {JobStatus.PENDING}


def test_dead_letters_redrive_skips_and_reports_a_taken_deduplication_key(run: Run, jobs: Jobs) -> None:
    first, held_id, *free, last = [
        jobs.add(JobStatus.DEAD, deduplication_key=key) for key in ("a", "k", None, None, None, "b")
    ]
    for key in ("a", "k", "b"):
        jobs.add(deduplication_key=key)
    result = run("dead-letters", "redrive", "--all", "--json", status=1)
    assert document(result)["redriven"] == [str(job_id) for job_id in free]
    assert [conflict["job_id"] for conflict in document(result)["conflicts"]] == [str(first), str(held_id), str(last)]
    assert "3 jobs skipped" in result.stderr
    assert {jobs.status(job_id) for job_id in (first, held_id, last)} == {JobStatus.DEAD}
    assert {jobs.status(job_id) for job_id in free} == {JobStatus.PENDING}


def test_dead_letters_dismiss_leaves_the_job_dead(run: Run, jobs: Jobs) -> None:
    dead = jobs.add(JobStatus.DEAD)
    (dead_letter,) = jobs.dead_letters(dead)
    dismissed = document(run("dead-letters", "dismiss", dead_letter["id"], "--by", "ann", "--json"))
    assert dismissed == {"dismissed": [str(dead_letter["id"])], "conflicts": []}
    assert [(dead_letter["resolution"], dead_letter["resolved_by"]) for dead_letter in jobs.dead_letters(dead)] == [
        ("dismissed", "ann")
    ]
    assert jobs.status(dead) is JobStatus.DEAD


@pytest.mark.parametrize("more", [[], ["--dry-run"]], ids=["really", "dry-run"])
def test_a_resolved_dead_letter_is_reported_with_who_resolved_it_and_when(run: Run, jobs: Jobs, more: list[str]) -> None:
    resolved, open_one = jobs.add(JobStatus.DEAD), jobs.add(JobStatus.DEAD)
    (dead_letter,), (other_letter,) = jobs.dead_letters(resolved), jobs.dead_letters(open_one)
    run("dead-letters", "redrive", dead_letter["id"], "--by", "ann")
    result = run("dead-letters", "redrive", dead_letter["id"], other_letter["id"], *more, status=1)
    assert result.stdout == f"1 job {'would be ' if more else ''}redriven\n"
    assert f"Error: dead letter {dead_letter['id']} is already resolved: redriven by ann at 20" in result.stderr
    assert "ids of jobs" not in result.stderr


def test_unknown_dead_letter_ids_are_counted(run: Run, jobs: Jobs) -> None:
    dead = jobs.add(JobStatus.DEAD)
    error = run("dead-letters", "redrive", dead, status=1).stderr.lstrip()  # click before 8.4 starts another line
    assert error == f"Error: 1 dead letter not found, such as {dead} (for ids of jobs use `jobs retry`)\n"
    error = run("dead-letters", "redrive", dead, uuid4(), status=1).stderr.lstrip()
    assert error.startswith(f"Error: 2 dead letters not found, such as {dead} ")


def test_counts_of_one_use_the_singular(run: Run, jobs: Jobs) -> None:
    later, dead, mail = jobs.add(due_in=3600), jobs.add(JobStatus.DEAD), jobs.add(type_name="mail")
    assert run("jobs", "list", "--type", "mail").stdout.startswith("1 job\n")
    assert run("dead-letters", "list").stdout.startswith("1 dead letter\n")
    assert run("dead-letters", "groups").stdout.startswith("1 dead letter\n")
    assert run("jobs", "retry", later, dead).stdout == "1 pending job triggered, 1 dead job redriven\n"
    assert run("jobs", "retry", later, mail).stdout == "2 pending jobs triggered, 0 dead jobs redriven\n"
    cancelled = run("jobs", "cancel", "--type", "mail", input="y\n")
    assert "Cancel 1 job?" in cancelled.stderr
    assert cancelled.stdout.endswith("1 job cancelled\n")


def test_jobs_show_of_an_unknown_id_says_not_found(run: Run) -> None:
    missing = uuid4()
    error = run("jobs", "show", missing, status=1).stderr
    assert error == f"Error: job {missing} not found (for the id of a dead letter use `dead-letters show`)\n"


@pytest.mark.slow
def test_an_id_may_be_shortened_to_its_ends(run: Run, jobs: Jobs) -> None:
    one, dead = jobs.add(), jobs.add(JobStatus.DEAD)
    (dead_letter,) = jobs.dead_letters(dead)
    for job_id in (one, dead):
        text = str(job_id)
        for start, dots, end in ((8, "..", 6), (12, "...", 12), (8, "…", 6), (30, "", 0)):
            short = f"{text[:start]}{dots}{text[36 - end :]}".upper()
            assert document(run("jobs", "show", short, "--json"))["job"]["id"] == text
    letter = str(dead_letter["id"])
    short = f"{letter[:8]}..{letter[-6:]}"
    assert document(run("dead-letters", "show", short, "--json"))["dead_letter"]["id"] == letter
    assert document(run("dead-letters", "redrive", short, "--json"))["redriven"] == [str(dead)]
    (listed,) = document(run("jobs", "list", "--chain", f"{str(one)[:8]}..{str(one)[-6:]}", "--json"))["jobs"]
    assert listed["id"] == str(one)


def test_a_shortened_id_that_fits_several_or_none_is_refused(run: Run, jobs: Jobs) -> None:
    ids = [jobs.add(id=UUID(f"0199c3f2-0000-7000-8000-00000000000{n}")) for n in range(2)]
    error = run("jobs", "cancel", "0199c3f2", status=2).stderr
    assert f"'0199c3f2' fits several ids: {ids[0]}, {ids[1]}" in " ".join(error.split())
    assert {jobs.status(job_id) for job_id in ids} == {JobStatus.PENDING}
    assert run("jobs", "cancel", "0199c3f2..1", "--json").stdout.count(str(ids[1])) == 1
    assert "Invalid value for 'ID': '0199c3f2..abc' fits no id" in run("jobs", "show", "0199c3f2..abc", status=2).stderr
    assert "Invalid value for '--chain': 'x' is not a UUID" in run("jobs", "list", "--chain", "x", status=2).stderr
    assert "shortened to its first 8 characters or more" in " ".join(run("jobs", "show", "0199c3", status=2).stderr.split())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("30s", timedelta(seconds=30)),
        ("250ms", timedelta(milliseconds=250)),
        ("5m", timedelta(minutes=5)),
        ("1h30m", timedelta(minutes=90)),
        ("1.5h", timedelta(minutes=90)),
        ("7d", timedelta(days=7)),
        ("2w", timedelta(weeks=2)),
        ("0", timedelta(0)),
    ],
)
def test_durations_have_units(text: str, expected: timedelta) -> None:
    assert duration(text) == expected == duration(expected)


@pytest.mark.parametrize("text", ["-1", "30", "1.5", "", "s", "5 minutes", "1d2", "99999999999w"])
def test_a_duration_without_a_unit_is_refused(run: Run, text: str) -> None:
    command = ["worker", "sa_jobqueue.cli.demo.app:jobs", "--shutdown-timeout", text]
    error = run(*command, status=2).stderr
    assert "is not a duration such as 30s, 5m, 12h or 7d" in error or "is too long" in error
    assert ("add a unit: 30s" in error) == (text == "30")


def test_dead_letters_redrive_without_a_selection_is_refused(run: Run, jobs: Jobs) -> None:
    dead = jobs.add(JobStatus.DEAD)
    run("dead-letters", "redrive", status=2)
    run("dead-letters", "redrive", "--all", "--type", "test", status=2)
    assert jobs.status(dead) is JobStatus.DEAD


def test_migrate_goes_up_and_down(run: Run, empty_database_url: str) -> None:
    assert document(run("migrate", "version", "--json", url=empty_database_url))["version"] == 0
    assert document(run("migrate", "upgrade", "--json", url=empty_database_url))["from"] == 0
    assert document(run("jobs", "list", "--json", url=empty_database_url)) == {"jobs": [], "next_after": None}
    run("migrate", "downgrade", "--to", 0, url=empty_database_url, input="n\n", status=1)
    run("migrate", "downgrade", "--to", 0, "--yes", url=empty_database_url)
    assert document(run("migrate", "version", "--json", url=empty_database_url))["version"] == 0


def test_migrate_sql_prints_a_script_that_installs_the_schema(run: Run, empty_database_url: str) -> None:
    import psycopg

    script = run("migrate", "sql", url=None).stdout
    place = make_url(empty_database_url).set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(place, autocommit=True) as connection:
        connection.execute(script.encode())
    run("jobs", "list", url=empty_database_url)


def test_a_missing_schema_is_a_one_line_error_with_the_command_to_run(run: Run, empty_database_url: str) -> None:
    (line,) = run("jobs", "list", url=empty_database_url, status=1).stderr.splitlines()
    assert "alembic upgrade head" in line


@pytest.mark.slow
@pytest.mark.parametrize(
    ("url", "status"),
    [
        ("postgresql://ann:s3cret@127.0.0.1:1/x?connect_timeout=2", 1),
        ("postgresql://127.0.0.1:1/x?user=ann&password=s3cret&connect_timeout=2", 1),
        ("postgresql://ann:a@s3cret@127.0.0.1:1/x", 2),
        ("postgresql://ann:s3cret@127.0.0.1:port/x", 2),
        ("mysql://ann:s3cret@127.0.0.1/x", 2),
        ("s3cret", 2),
    ],
)
@pytest.mark.parametrize(
    "command",
    [["jobs", "list"], ["migrate", "version"], ["worker", "sa_jobqueue.cli.demo.app:jobs"]],
    ids=" ".join,
)
def test_no_error_shows_the_password_of_the_url(run: Run, url: str, status: int, command: list[str]) -> None:
    result = run(*command, url=url, status=status)
    assert "s3cret" not in result.output
    if status == 1:  # the database is named, in one line, whatever the command
        (line,) = result.stderr.splitlines()
        assert line.startswith("Error: cannot use postgresql+psycopg://")
        assert "127.0.0.1:1/x?" in line


@pytest.mark.parametrize("password", ["sesame", "ses@me", "ses/me", "se:sa@me"])
@pytest.mark.parametrize("command", [["archive"], [], ["jobs", "list", "--limit"]])
def test_a_misplaced_url_is_shown_without_its_password(run: Run, command: list[str], password: str) -> None:
    stderr = run(*command, f"postgresql://ann:{password}@h/db?sslpassword=key", url=None, status=2).stderr
    assert "postgresql://ann:***@h/db?sslpassword=***" in stderr
    assert password not in stderr


JOBS = "sa_jobqueue.cli.demo.app:jobs"


@pytest.mark.parametrize(
    ("command", "option"),
    [
        (["worker", JOBS, "--queues", "a b"], "--queues"),
        (["worker", JOBS, "--concurrency", 0], "--concurrency"),
        (["worker", JOBS, "--listen-url", "x"], "--listen-url"),
        (["worker", JOBS, "--max-memory", 1], "--max-memory"),
        (["worker", JOBS, "--name", "a b"], "--name"),
        (["worker", JOBS, "--engine", "x"], "--engine"),
        (["enqueue", "test", "--queue", ".x"], "--queue"),
        (["enqueue", "test", "--priority", 10], "--priority"),
        (["enqueue", "test", "--ordering-key", ""], "--ordering-key"),
        (["grants", "--roles", "A B"], "--roles"),
        (["doctor", "--listen-url", "x"], "--listen-url"),
        (["migrate", "upgrade", "--to", 99], "--to"),
        (["audit", "list", "--after", "x"], "--after"),
        (["queues", "set", "mail", "--rate-limit", 5], "--rate-period"),
        (["jobs", "list", "--app", "x"], "--app"),
        (["queues", "pause", "a b"], "NAME: must be 1 to 100"),
        (["queues", "set", "a b", "--weight", 2], "NAME: must be 1 to 100"),
        (["queues", "shares", "--window", 0], "--window"),
        (["thresholds", "set", "--queue", "a b", "long_running=1h"], "--queue: must be 1 to 100 of A-Z a-z 0-9"),
        (["explain", "00000000-0000-7000-8000-000000000001", "--heartbeat-timeout", 0], "--heartbeat-timeout"),
        (["events", "send", "", "1"], "NAME: must be 1 to 200"),
        (["enqueue", "a b"], "TYPE: must be 1 to 100"),
        (["workers", "concurrency", "x", 0], "N: must be from 1"),
        (["thresholds", "set", "saturation"], "'saturation' must be NAME=VALUE"),
        (["thresholds", "set", "long_running=x"], "long_running: 'x' is not a duration"),
        (["dashboard", "--port", 0, "--root-path", "jobs"], "--root-path"),
        (["dashboard", "--port", 0, "--trace-url", "ftp://x"], "--trace-url"),
        (["dashboard", "--port", 0, "--authorize", "sa_jobqueue.cli.demo.app:SCHEMA"], "--authorize"),
        (["jobs", "list", "--url", "mysql://h/d"], "must be a PostgreSQL URL: postgresql://user@host:port/database"),
    ],
    ids=lambda parameter: parameter if isinstance(parameter, str) else " ".join(map(str, parameter)),
)
def test_a_refused_value_is_wrong_usage_of_its_option(run: Run, command: list[object], option: str) -> None:
    error = run(*command, status=2).stderr.partition("Error: ")[2]
    assert option in error
    assert "{" not in error.replace("{trace_id}", "")


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (["jobs", "priority", UUID(int=7), "--to", 3], f"no such job: {UUID(int=7)}"),
        (["workers", "drain", "nope"], "worker 'nope' not found"),
        (["chains", "show", UUID(int=7)], f"Error: no such chain: {UUID(int=7)}"),
        (["grafana", "--to", "/proc/x"], "cannot write /proc/x: No such file"),
        (["postgres", "--data-dir", "/proc/x"], "cannot create /proc/x: No such file"),
        (["exporter", "--address", "192.0.2.1", "--port", 0], "cannot listen on 192.0.2.1:0"),
    ],
    ids=lambda parameter: parameter if isinstance(parameter, str) else " ".join(map(str, parameter)),
)
def test_what_cannot_be_found_or_used_is_an_error_in_one_line(run: Run, command: list[object], reason: str) -> None:
    (line,) = run(*command, status=1).stderr.splitlines()
    assert reason in line


def test_a_missing_right_is_named_with_the_command_that_lists_all(run: Run, engine: Engine, database_url: str) -> None:
    reader = f"reader_{uuid4().hex[:12]}"
    with engine.begin() as connection:
        connection.execute(text(f"CREATE ROLE {reader} LOGIN"))
        connection.execute(text(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {reader}"))
    try:
        url = make_url(database_url).set(username=reader).render_as_string(hide_password=False)
        error = run("queues", "set", "mail", "--weight", 2, url=url, status=1).stderr
        assert "permission denied for table queue; sa-jobqueue doctor --role operator lists the missing rights" in error
    finally:
        write(engine, f"DROP OWNED BY {reader}; DROP ROLE {reader}")


@pytest.mark.parametrize("arguments", [("jobs", "list"), ("jobs", "list", "--help"), ("--help",)])
def test_an_output_that_cannot_be_written_is_one_line_and_no_traceback(
    database_url: str, programs: Programs, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    ended = programs.run_module(
        "sa_jobqueue", *arguments, cwd=tmp_path, env={"SA_JOBQUEUE_URL": database_url}, stdout=Path("/dev/full")
    )
    (line,) = ended.stderr.splitlines()
    assert "No space left on device" in line
    assert ended.code == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "status", "error"),
    [
        (("migrate", "downgrade", "--to", "0"), 1, "Aborted!"),
        (("enqueue", "send", "-"), 2, "must be JSON"),
    ],
)
def test_a_closed_input_is_an_empty_one(database_url: str, arguments: tuple[str, ...], status: int, error: str) -> None:
    command = shlex.join([sys.executable, "-m", "sa_jobqueue", *arguments])
    process = subprocess.run(
        ["sh", "-c", f"exec {command} <&-"],
        env=os.environ | {"SA_JOBQUEUE_URL": database_url},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (process.returncode, error in process.stderr, "Traceback" in process.stderr) == (status, True, False)


def test_json_that_is_too_deep_is_wrong_usage(run: Run) -> None:
    assert "must be JSON" in run("enqueue", "send", "[" * 100_000, status=2).stderr


@pytest.mark.parametrize("name", [".", ".shop", "shop..jobs", "shop."])
def test_the_name_of_no_module_is_wrong_usage(run: Run, name: str) -> None:
    assert f"Error: {name!r} is not the name of a module" in run("jobs", "list", "--app", f"{name}:jobs", status=2).stderr


@pytest.mark.slow
def test_a_closed_output_is_no_error(database_url: str) -> None:
    command = f"exec {sys.executable} -m sa_jobqueue jobs list >&-"
    process = subprocess.run(
        ["sh", "-c", command],
        env=os.environ | {"SA_JOBQUEUE_URL": database_url},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (process.returncode, process.stderr) == (0, "")


@pytest.mark.parametrize(
    ("app", "reason"),
    [
        ("nothing", "must be MODULE:ATTRIBUTE"),
        ("no_such_module:jobs", "module 'no_such_module' not found"),
        ("sa_jobqueue.cli:nothing", "has no attribute 'nothing'"),
        ("sa_jobqueue.cli:main", "not a JobQueue"),
        ("sa_jobqueue.cli.demo.app:job", "no attribute 'job'; pass sa_jobqueue.cli.demo.app:jobs"),
        ("sa_jobqueue.cli.demo.app:SCHEMA", "is of type str, not a JobQueue; pass sa_jobqueue.cli.demo.app:jobs"),
        ("sa_jobqueue:Worker", "'sa_jobqueue:Worker' is a class, Worker, not a JobQueue"),
    ],
)
def test_an_invalid_app_is_a_usage_error(run: Run, app: str, reason: str) -> None:
    assert reason in run("jobs", "list", "--app", app, status=2).stderr


def test_app_chooses_the_queue(run: Run, engine: Engine, jobs: Jobs) -> None:
    jobs.add()
    demo = ["--app", "sa_jobqueue.cli.demo.app:jobs"]
    run("migrate", "upgrade", *demo)
    assert document(run("jobs", "list", "--json", *demo))["jobs"] == []
    write(engine, "INSERT INTO sa_jobqueue_demo.job_queue (type_name, input) VALUES ('count_file', '{}')")
    assert len(document(run("jobs", "list", "--json", *demo))["jobs"]) == 1
    assert len(document(run("jobs", "list", "--json"))["jobs"]) == 1

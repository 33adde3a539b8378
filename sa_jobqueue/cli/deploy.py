"""`sa-jobqueue deploy`: compare the declarations of new code with the jobs, schedules and records in the tables."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

import click
from sqlalchemy.orm import Session

from sa_jobqueue import operations
from sa_jobqueue.cli import _options as opts
from sa_jobqueue.cli import noun_group
from sa_jobqueue.cli._output import counted, first_line, shown
from sa_jobqueue.cli.doctor import Check, Status, report
from sa_jobqueue.cli.worker import queue_limits
from sa_jobqueue.display.printable import message_of
from sa_jobqueue.errors import InvalidPayloadError
from sa_jobqueue.operations.pages import every_item
from sa_jobqueue.operations.row_security import hidden_rows
from sa_jobqueue.operations.schedules import schedule_differences
from sa_jobqueue.registry.job_queue import JobQueue
from sa_jobqueue.registry.job_types import JobType
from sa_jobqueue.statements import deployments
from sa_jobqueue.types import EVENT_STEP, JobStatus, StepKind

Users: TypeAlias = dict[str, list[str]]
Decoding: TypeAlias = tuple[Any, Callable[[], object]]
"""The id of a job, and a call that decodes something of it."""

deploy: Final = noun_group("deploy")


@deploy.command()
@click.option(
    "--queues",
    type=queue_limits,
    metavar="A,B=2",
    help="All queues that the new workers will serve.  [default: the queues of the handlers]",
)
@opts.number_option(
    "--records",
    "Also decode up to N payloads of each type and version, and N recorded steps of each type.",
    least=1,
    most=100_000,
)
@opts.json_option
@opts.url_option
@opts.application_option("The JobQueue of the new code.", required=True)
def check(*, url: str | None, app: str, queues: dict[str, int | None] | None, records: int | None) -> None:
    """Check new code against the open jobs and the schedules: types, versions, queues and schedules that it leaves behind.

    Run it with the new code, before its workers start. It imports the application and changes nothing; with --records it
    calls validators and upcasters as well. Later jobs are not seen. Exit status: 0 without errors, 1 with errors.
    """
    with opts.application_session(app, url) as (jobs, session):
        report(list(compare(session, jobs, queues=queues or jobs.queues, records=records)))


def compare(session: Session, jobs: JobQueue[Any], *, queues: Collection[str], records: int | None) -> Iterator[Check]:
    """Yield a check with the numbers read, then one for each misfit. `queues`, `records`: as the command's options."""
    model = jobs.model
    rows = session.execute(deployments.open_jobs(model)).all()
    stored = {
        schedule.name: schedule
        for schedule in every_item(lambda after: operations.list_schedules(session, after=after, model=model))
    }
    total = counted(sum(row.jobs for row in rows), "open job")
    yield Check("read", Status.OK, f"{total} and {counted(len(stored), 'schedule')}")
    nouns = {"job", "schedule"} | ({"job_step"} if records else set())
    for hidden in hidden_rows(session, commands=["SELECT"], model=model):
        if hidden.noun in nouns:
            yield Check("row security", Status.ERROR, str(hidden), "run it as the tables' owner, or a role with BYPASSRLS")
    declared = {schedule.name: schedule for schedule in jobs.schedules}  # workers that start write these
    users_of_type: Users = defaultdict(list)
    users_of_queue: Users = defaultdict(list)
    versions: dict[tuple[str, int], list[str]] = defaultdict(list)
    for row in rows:
        count = counted(row.jobs, "open job")
        users_of_type[row.type_name].append(f"{count} of version {row.input_version} in queue {row.queue!r}")
        users_of_queue[row.queue].append(f"{count} of {row.type_name!r}")
        versions[row.type_name, row.input_version].append(f"{count} in queue {row.queue!r}")
    for schedule in (stored | declared).values():
        name = f"the schedule {schedule.name!r}"
        users_of_type[schedule.type_name].append(name)
        if schedule.queue is not None:
            users_of_queue[schedule.queue].append(name)
        if schedule.input_version is not None:
            versions[schedule.type_name, schedule.input_version].append(name)
    for kind in jobs.registry:
        users_of_queue[kind.queue].append(f"the handler {kind.name!r}")
    yield from _missing_types(jobs, users_of_type)
    yield from _uncovered_versions(jobs, versions)
    for queue in sorted(users_of_queue.keys() - set(queues)):
        advice = f"let a worker serve it, and name all queues here: --queues {','.join([*queues, queue])}"
        problem = f"nothing would serve queue {queue!r}: {', '.join(users_of_queue[queue])}"
        yield Check("queues", Status.ERROR, problem, advice)
    for name, columns in schedule_differences(session, jobs.schedules, model=model).items():
        changes = ", ".join(f"{column} {shown(old)} -> {shown(new)}" for column, (old, new) in columns.items())
        advice = "nothing, if that is meant: the first worker that starts writes it"
        yield Check("schedules", Status.WARNING, f"{name!r} changes: {changes}", advice)
    for schedule in stored.values():
        if schedule.source == "code" and schedule.name not in declared:
            problem = f"{schedule.name!r} is not declared any more, and goes on to fire {schedule.type_name!r}"
            advice = f"delete it when no old worker is left: sa-jobqueue schedules delete {schedule.name}"
            yield Check("schedules", Status.WARNING, problem, advice)
    for type_name, version in sorted(versions) if records else ():
        if type_name in jobs.registry and version <= (kind := jobs.registry.get(type_name)).version:
            yield from _unfit_payloads(session, jobs, kind, {"input_version": version, "limit": records})
    for type_name in sorted({row.type_name for row in rows} & set(jobs.registry.names)) if records else ():
        yield from _unfit_steps(session, jobs, jobs.registry.get(type_name), records)


def _missing_types(jobs: JobQueue[Any], users_of_type: Users) -> Iterator[Check]:
    for name in sorted(users_of_type.keys() - set(jobs.registry.names)):
        advice = (
            f"keep its handler until they have ended: sa-jobqueue jobs list --type {name}; or cancel them: sa-jobqueue jobs "
            f"cancel --type {name} --dry-run; delete its schedules: sa-jobqueue schedules delete NAME"
        )
        yield Check("types", Status.ERROR, f"no handler for {name!r}: {', '.join(users_of_type[name])}", advice)


def _uncovered_versions(jobs: JobQueue[Any], versions: Mapping[tuple[str, int], list[str]]) -> Iterator[Check]:
    for (name, version), users in versions.items():
        if name not in jobs.registry or (kind := jobs.registry.get(name)).version == version:
            continue
        subject = f"{name!r} has version {kind.version}, and version {version} has {', '.join(users)}"
        missing = [step for step in range(version, kind.version) if step not in kind.upcasters]
        if version > kind.version:
            yield Check("versions", Status.WARNING, f"{subject}, which wait", "keep workers that know that version")
        elif missing:
            advice = (
                f"register an upcaster: @{kind.signature.func.__name__}.upcast(from_version={missing[0]}); or run them with "
                f"the old code first: require_no_jobs({name!r}, below_version={kind.version}) in the migration"
            )
            problem = f"{subject}, without an upcaster from {missing[0]}: they would become dead letters"
            yield Check("versions", Status.ERROR, problem, advice)


def _unfit_payloads(session: Session, jobs: JobQueue[Any], kind: JobType, parameters: dict[str, Any]) -> Iterator[Check]:
    if not kind.signature.takes_input:
        return
    version = parameters["input_version"]
    rows = session.execute(deployments.payloads(jobs.model), {"type_name": kind.name, **parameters})
    decodings = [(row.id, partial(kind.decode, row.input, version)) for row in rows]
    yield from _unfit(kind.name, f"payloads of version {version}", decodings, "correct the type, or the upcaster")


def _unfit_steps(session: Session, jobs: JobQueue[Any], kind: JobType, limit: int | None) -> Iterator[Check]:
    decodings: dict[str, list[Decoding]] = defaultdict(list)
    unknown: Counter[str] = Counter()
    for row in session.execute(deployments.step_records(jobs.model), {"type_name": kind.name, "limit": limit}):
        codec = kind.output if kind.is_event and row.name == EVENT_STEP else None
        if row.kind == StepKind.RUN and row.child_type in jobs.registry:
            codec = jobs.registry.get(row.child_type).chain_output
        if codec is None and row.name not in kind.step_upcasters:
            unknown[row.name] += 1
        else:
            decodings[row.name].append((row.job_id, partial(_decode_step, kind, row, codec)))
    for name, of_step in decodings.items():
        advice = "give the step the recorded type (unless its call passes output=), a new name, or an upcaster (upcast_step)"
        yield from _unfit(kind.name, f"records of step {name!r}", of_step, advice)
    if unknown:
        names = ", ".join(f"{name!r} ({count})" for name, count in unknown.items())
        yield Check("records", Status.OK, f"{kind.name!r}: not decoded, as only the call knows the type: {names}")


def _decode_step(kind: JobType, row: Any, codec: Any) -> None:
    """Decode a recorded step as an attempt does: by its type, otherwise by its upcaster. Raises: as these do."""
    stored: Any = kind.open("output", row.output)
    if row.kind == StepKind.RUN:
        if stored["status"] != JobStatus.COMPLETED:
            return
        stored = stored["output"]
    elif row.kind == StepKind.CURSOR:
        stored = stored["position"]
    upcaster = kind.step_upcasters.get(row.name)
    if codec is None and upcaster is not None:
        upcaster(stored)
        return
    try:
        codec.decode("output", stored)
    except InvalidPayloadError:
        if upcaster is None:
            raise
        codec.decode("output", upcaster(stored))


def _unfit(type_name: str, noun: str, decodings: Sequence[Decoding], advice: str) -> Iterator[Check]:
    """Yield the check of decodings: an error with the first failure, if there is one."""
    failures = []
    for job_id, decode in decodings:
        try:
            decode()
        except Exception as error:  # of the application's validators and upcasters
            failures.append(
                f"job {job_id}: {first_line({'type': type(error).__name__, 'message': message_of(error)}, type_name)}"
            )
    summary = f"{type_name!r}: {len(failures)} of {len(decodings)} {noun} that were read do not fit"
    if failures:
        yield Check("records", Status.ERROR, f"{summary}; the first is of {failures[0]}", advice)
    else:
        yield Check("records", Status.OK, summary)

"""`pgbench` running the queue's own SQL: the cost with a client that does next to nothing."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from typing import Any, Final

from sqlalchemy import ClauseElement, literal_column, make_url
from sqlalchemy.dialects import postgresql

from benchmarks.meter import Stopwatch
from benchmarks.place import Place
from benchmarks.rows import JOB_TYPE
from sa_jobqueue import Job
from sa_jobqueue.db.sessions import GUARDS
from sa_jobqueue.errors.extras import install_command
from sa_jobqueue.statements import claims, completions
from sa_jobqueue.testing.binaries import binary_dirs

BATCH: Final = 100
WORKER: Final = "benchmark:000000000000"
_LOWEST: Final = "00000000-0000-0000-0000-000000000000"
_DIALECT: Final = postgresql.psycopg.dialect()  # type: ignore[no-untyped-call]


def sql(statement: ClauseElement) -> str:
    """Return a statement as the worker sends it, its parameters as pgbench's variables."""
    compiled = statement.compile(dialect=_DIALECT)
    # What has a value already is a constant of the statement's own: a number, or an array without elements.
    constants = {name: str(value) if value != [] else "'{}'" for name, value in compiled.params.items() if value is not None}
    text = re.sub(r"%\((\w+)\)s", lambda match: constants.get(match[1], f":{match[1]}"), str(compiled))
    # In a slice a colon before a name would be taken for a variable.
    return re.sub(r"\[([\w.]+):([\w.]+)\]", r"[\1 : \2]", text)


def claim() -> str:
    """Return our claim, and what moves its cursor, as one row for `\\gset`."""
    ids = "array_agg({0}) FILTER (WHERE claimed.id IS NOT NULL)"
    last = f"({ids.format('claimed.id ORDER BY claimed.scheduled_at DESC, claimed.id DESC')})[1]"
    columns = {
        "ids": f"coalesce({ids.format('claimed.id')}, '{{}}')",
        "attempts": f"coalesce({ids.format('claimed.attempt')}, '{{}}')",
        "outputs": f"""coalesce({ids.format("'null'::text")}, '{{}}')""",
        # Every job of a benchmark has the same priority: one lane is open.
        "cursor_at": "ARRAY[coalesce(max(claimed.scheduled_at), now())]",
        "cursor_id": f"ARRAY[coalesce({last}, '{_LOWEST}')]",
    }
    statement: Any = claims.claim(Job).with_only_columns(
        *(literal_column(expression).label(name) for name, expression in columns.items())
    )
    return f"{sql(statement)}\n\\gset\n"


def complete() -> str:
    """Return our completion of the jobs of the claim before it."""
    return f"{sql(completions.complete(Job))};\n"


def run(place: Place, watch: Stopwatch, script: str, *, transactions: int, batch: int = BATCH, clients: int = 1) -> None:
    """Run a script so many times on each of `clients` connections, prepared, and count it in.

    Raises: FileNotFoundError without pgbench, RuntimeError when it failed.
    """
    url = make_url(place.url)
    variables = {
        "limit": str(batch),
        "worker_id": WORKER,
        "grace": "15 s",
        "types": f"{{{JOB_TYPE}}}",
        "queues": "{default}",
        "fairness_keys": '{""}',
        "priorities": "{0}",
        "cursor_at": '{"0001-01-01 00:00:00+00"}',
        "cursor_id": f"{{{_LOWEST}}}",
        **dict.fromkeys(("segment_first", "segment_last", "segment_first_type", "segment_last_type"), "{1}"),
        "segment_quota": f"{{{batch}}}",
        **dict.fromkeys(("late_ids", "late_xids", "apart"), "{}"),
        "n": "0",  # for scripts that count
    }
    with tempfile.NamedTemporaryFile("w", suffix=".sql") as file:
        file.write(script)
        file.flush()
        command = [find(place), "-n", "-M", "prepared", "-f", file.name]
        command += ["-c", str(clients), "-j", str(clients), "-t", str(transactions)]
        command += [part for name, value in variables.items() for part in ("-D", f"{name}={value}")]
        before = watch.seconds
        with watch:
            completed = subprocess.run(
                [*command, url.database or "postgres"],
                env=os.environ | _environment(url),
                check=False,
                capture_output=True,
                text=True,
            )
    rate = re.search(r"tps = ([\d.]+)", completed.stdout)
    if completed.returncode != 0 or rate is None or "aborted" in completed.stderr:
        raise RuntimeError(f"pgbench failed: {completed.stderr[-2000:]}")
    # Its own count of time, from when it was connected.
    watch.seconds = before + transactions * clients / float(rate[1])
    if watch.round_trips is not None:
        statements = script.count("\\gset") + script.count(";\n")
        watch.round_trips += transactions * clients * statements


def find(place: Place) -> str:
    """Return the path of a pgbench. Raises: FileNotFoundError."""
    places = [place.bin_dir, *(binaries.path for binaries in reversed(binary_dirs()))]
    for directory in places:
        if directory is not None and (directory / "pgbench").exists():
            return str(directory / "pgbench")
    on_path = shutil.which("pgbench")
    if on_path is None:
        raise FileNotFoundError(f"pgbench is not at hand: {install_command('demo')} brings it")
    return on_path


def completed(place: Place) -> int:
    """Return how many jobs are completed."""
    return int(place.scalar("SELECT count(*) FROM job WHERE status = 'completed'"))


def _environment(url: Any) -> dict[str, str]:
    query = dict(url.query)
    variables = {
        "PGHOST": url.host or query.get("host"),
        "PGPORT": url.port or query.get("port"),
        "PGUSER": url.username,
        "PGPASSWORD": url.password,
        "PGOPTIONS": " ".join(f"-c {name}={value}" for name, value in GUARDS.items()),
    }
    return {name: str(value) for name, value in variables.items() if value is not None}

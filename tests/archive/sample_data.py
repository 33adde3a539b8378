"""A queue with something of everything, and every row of it in tables and archives, to be compared."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, select, text

from sa_jobqueue import Job
from sa_jobqueue.pipeline.archive import read
from sa_jobqueue.pipeline.history import DATASETS
from sa_jobqueue.pipeline.statements import history
from tests.fixtures.transactions import scalars

Rows = dict[str, dict[tuple[Any, ...], dict[str, Any]]]
"""By dataset and key: a row's published columns."""

# Chains 1 to 8 have ended, on three days: one job each, but 2, of three jobs, which waited for 3 and 4, as 4 did for 5; 6 is
# dead, its dead letter dismissed; 7 is dead; 8 was cancelled. 9 is pending.
WORLD = """
CREATE TEMPORARY TABLE one AS SELECT n, ('00000000-0000-7000-8000-' || lpad(n::text, 12, '0'))::uuid AS id
  FROM generate_series(1, 12) AS n;
INSERT INTO job (id, chain_id, type_name, chain_type_name, input, timeout, trace_context, deduplication_key,
  ordering_key, expires_at, rate_cost, fairness_key)
SELECT id, id, 'type' || n % 2, 'type' || n % 2, CASE n WHEN 1 THEN NULL WHEN 3 THEN 'null'::jsonb ELSE
    jsonb_build_object('text', E'a "quoted", line\\nand a ä \\u00e9', 'n', n, 'empty', '') END,
  CASE n WHEN 1 THEN interval '2 days 00:00:00.000001' END, CASE n WHEN 3 THEN '' END, 'key' || n,
  CASE WHEN n > 5 THEN 'customer ' || n END,
  CASE n WHEN 6 THEN timestamptz '2031-02-03 04:05:06.000007+01' END, CASE n WHEN 6 THEN 7 END,
  CASE WHEN n > 4 THEN 'tenant ' || n ELSE '' END
FROM one WHERE n <= 9;
INSERT INTO job (id, chain_id, chain_index, type_name, chain_type_name, input)
SELECT other.id, root.id, other.n - 9, 'later', 'type0', '[1.50]' FROM one AS root JOIN one AS other ON other.n IN (10, 11)
WHERE root.n = 2;
INSERT INTO job_blocker (job_id, blocked_by_chain_id, index, is_resolved)
SELECT a.id, b.id, b.n, true FROM one AS a JOIN one AS b ON (a.n, b.n) IN ((10, 3), (2, 4), (4, 5));
UPDATE job SET status = 'running', leased_by = 'w', attempt = 1, started_at = now() - interval '50 days 00:00:00.5'
FROM one WHERE job.id = one.id AND n NOT IN (8, 9);
UPDATE job SET status = CASE WHEN n IN (6, 7) THEN 'dead' WHEN n = 8 THEN 'cancelled' ELSE 'completed' END::job_status,
  leased_by = NULL, completed_by = 'w', output = CASE WHEN n <> 4 THEN 'null'::jsonb END,
  completed_at = now() - interval '40 days', last_error = CASE n WHEN 6 THEN '{"type": "E"}'::jsonb END,
  chain_completed_at = CASE WHEN n < 9 THEN now() - (40 + n % 3) * interval '1 day' END
FROM one WHERE job.id = one.id AND n NOT IN (9);
UPDATE job SET chain_status = 'completed' FROM one WHERE job.id = one.id AND n = 2;
INSERT INTO job_attempt (job_id, attempt, worker_id, outcome, error)
SELECT id, attempt, 'w', 'failed', '{"type": "E", "message": "boom", "traceback": ""}'
FROM one, generate_series(1, 2) AS attempt WHERE n IN (1, 6, 7, 9, 11);
INSERT INTO dead_letter
  (id, job_id, chain_id, queue, fairness_key, type_name, input, input_version, reason, attempts, resolution, resolved_at)
SELECT gen_random_uuid(), id, id, 'default', 'tenant ' || n, 'type0', '{}', 1, 'exhausted', 1,
  CASE n WHEN 6 THEN 'dismissed'::dead_letter_resolution END, CASE n WHEN 6 THEN now() END FROM one WHERE n IN (6, 7);
DROP TABLE one;
"""


def chain(number: int) -> str:
    """Return the id of one of the world's jobs."""
    return f"00000000-0000-7000-8000-{number:012}"


def fill(engine: Engine, script: str = WORLD) -> None:
    """Write the world."""
    with engine.begin() as connection:
        for statement in script.split(";\n"):
            if statement.strip():
                connection.execute(text(statement.replace(":", "\\:").replace("\\:\\:", "::").replace("::", "\\:\\:")))


def in_tables(engine: Engine, model: type[Any] = Job) -> Rows:
    """Read every row of the tables, as it is published."""
    with engine.connect() as connection:
        connection.execute(text("SET LOCAL TimeZone = 'UTC'"))
        return {
            name: _keyed(name, (dict(row) for row in connection.execute(history.rows(model, dataset)).mappings()))
            for name, dataset in DATASETS.items()
        }


def in_archive(path: Path | str) -> Rows:
    """Read every row of an archive; each key must be there once."""
    return {name: _keyed(name, read(path, name, columns=dataset.names).to_pylist()) for name, dataset in DATASETS.items()}


def together(*parts: Rows) -> Rows:
    """Return the rows of several places, of which none may be in two."""
    joined: Rows = {name: {} for name in DATASETS}
    for part in parts:
        for name, rows in part.items():
            assert not joined[name].keys() & rows.keys(), f"{name} in two places"
            joined[name] |= rows
    return joined


def chains_in(rows: Rows) -> set[str]:
    """Return the ids of the chains that have jobs among rows."""
    return {row["chain_id"] for row in rows["jobs"].values()}


def states(engine: Engine, model: type[Any] = Job) -> list[str]:
    """Return the states of the runs in the ledger, the oldest first."""
    run = model.ArchiveRun
    return scalars(engine, select(run.state).order_by(run.started_at, run.id))


def _keyed(name: str, rows: Iterable[dict[str, Any]]) -> dict[tuple[Any, ...], dict[str, Any]]:
    keyed: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        key = tuple(row[column] for column in DATASETS[name].key)
        assert key not in keyed, f"{name} {key} is there twice"
        keyed[key] = row
    return keyed

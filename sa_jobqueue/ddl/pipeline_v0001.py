"""Version 1 of the pipeline: the tables of bulk writes and of the archive.

Roll-out: before the code that uses it. Locks: none on existing tables.
"""

from __future__ import annotations

import hashlib
from typing import Any

from sa_jobqueue.ddl.v0001 import statements

VERSION = 1


def upgrade(**names: Any) -> list[str]:
    """Return the statements that add version 1 to a queue."""
    return [*statements(_TABLES, **names), *statements(_STAMP, **names)]


def downgrade(**names: Any) -> list[str]:
    """Return the statement that removes version 1, with the records of writes and of the archive."""
    return statements(_DROP, **names)


_TABLES = """\
CREATE UNLOGGED TABLE ${q}job_bulk_staging (
  write_id text NOT NULL,
  sequence bigint NOT NULL,
  task_id bigint NOT NULL,
  row bigint NOT NULL,
  id $id,
  queue text, fairness_key text,
  type_name text,
  priority smallint,
  input jsonb, input_version integer,
  scheduled_at timestamptz, delay interval,
  max_attempts integer,
  timeout interval,
  deduplication_key text,
  blockers $key[], on_failure text,
  trace_context text,
  rejected_field text, rejected_reason text, record text,
  staged_at timestamptz DEFAULT now() NOT NULL,
  rate_cost integer, expires_at timestamptz,
  ordering_key text,
  deadline timestamptz
)
--;
CREATE INDEX ${p}ix_job_bulk_staging_write ON ${q}job_bulk_staging (write_id, sequence)
--;
CREATE TABLE ${q}job_bulk_write (
  write_id text NOT NULL,
  sequence bigint NOT NULL,
  staged bigint NOT NULL,
  enqueued bigint NOT NULL,
  duplicates bigint NOT NULL,
  rejected bigint NOT NULL,
  fingerprint bigint DEFAULT 0 NOT NULL,
  row_hashes bytea,
  written_by text,
  written_at timestamptz DEFAULT now() NOT NULL,
  changed_xid xid8 DEFAULT pg_current_xact_id() NOT NULL,
  CONSTRAINT ${p}pk_job_bulk_write PRIMARY KEY (write_id, sequence)
)
--;
CREATE INDEX ${p}ix_job_bulk_write_written_at ON ${q}job_bulk_write (written_at)
--;
CREATE INDEX ${p}ix_job_bulk_write_hashes ON ${q}job_bulk_write (written_at) WHERE row_hashes IS NOT NULL
--;
CREATE TABLE ${q}job_bulk_reject (
  write_id text NOT NULL,
  sequence bigint NOT NULL,
  task_id bigint NOT NULL,
  row bigint NOT NULL,
  field text NOT NULL,
  reason text NOT NULL,
  record text,
  rejected_at timestamptz DEFAULT now() NOT NULL,
  CONSTRAINT ${p}pk_job_bulk_reject PRIMARY KEY (write_id, sequence, task_id, row)
)
--;
CREATE TABLE ${q}archive_run (
  id uuid NOT NULL,
  path text NOT NULL,
  engine text NOT NULL,
  cutoff timestamptz NOT NULL,
  state text DEFAULT 'planned' NOT NULL,
  chains bigint DEFAULT 0 NOT NULL,
  jobs bigint DEFAULT 0 NOT NULL,
  attempts bigint DEFAULT 0 NOT NULL,
  dead_letters bigint DEFAULT 0 NOT NULL,
  blockers bigint DEFAULT 0 NOT NULL,
  retained bigint DEFAULT 0 NOT NULL,
  started_at timestamptz DEFAULT now() NOT NULL,
  changed_at timestamptz DEFAULT now() NOT NULL,
  CONSTRAINT ${p}pk_archive_run PRIMARY KEY (id),
  CONSTRAINT ${p}ck_archive_run_state CHECK (state IN ('planned', 'written', 'deleting', 'deleted', 'done'))
)
--;
CREATE TABLE ${q}archive_chain (
  run_id uuid NOT NULL,
  chain_id $id NOT NULL,
  part integer NOT NULL,
  completed_on date NOT NULL,
  CONSTRAINT ${p}pk_archive_chain PRIMARY KEY (chain_id, run_id)
)
--;
CREATE INDEX ${p}ix_archive_chain_part ON ${q}archive_chain (run_id, part)"""

BUILD = hashlib.sha256(_TABLES.encode()).hexdigest()[:8]
"""As in `v0001`."""

_STAMP = f"COMMENT ON TABLE ${{q}}job_bulk_write IS 'sa_jobqueue version={VERSION} build={BUILD}'"

_DROP = """\
DROP TABLE IF EXISTS ${q}archive_chain, ${q}archive_run, ${q}job_bulk_reject, ${q}job_bulk_write, ${q}job_bulk_staging"""

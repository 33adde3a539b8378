"""Version 2: what bulk pipelines need: staging and a ledger of writes, runs of the archive, exact incremental reads.

Roll-out: before the code that uses it. Locks: SHARE on `job`, `job_attempt` and `dead_letter` while their new indexes are
built, which lets reads through and holds writes up; the one on `job` is a BRIN index, one pass over the table. ACCESS
EXCLUSIVE on `worker`, for a moment at the end. All are held until the migration commits.
"""

from __future__ import annotations

from string import Template

VERSION = 2


def upgrade(*, schema: str | None, prefix: str, id_type: str) -> list[str]:
    """Return the statements that lead from version 1 to version 2."""
    return [
        *_statements(_TABLES, schema, prefix, id_type),
        *_statements(_INDEXES, schema, prefix, id_type),
        *routines(schema=schema, prefix=prefix, id_type=id_type),
        _render(_DRAIN, schema, prefix, id_type),
        _render(_STAMP, schema, prefix, id_type),
    ]


def downgrade(*, schema: str | None, prefix: str, id_type: str) -> list[str]:
    """Return the statements that lead back to version 1. The ledgers of writes and of archive runs are lost."""
    return [*_statements(_DROP, schema, prefix, id_type), _render(_STAMP, schema, prefix, id_type).replace("=2", "=1")]


def routines(*, schema: str | None, prefix: str, id_type: str) -> list[str]:
    """Return the triggers: what the models' own `create_all` cannot make by itself."""
    return _statements(_ROUTINES, schema, prefix, id_type)


def _statements(text: str, schema: str | None, prefix: str, id_type: str) -> list[str]:
    return [statement.strip() for statement in _render(text, schema, prefix, id_type).split("\n--;\n") if statement.strip()]


def _render(text: str, schema: str | None, prefix: str, id_type: str) -> str:
    return Template(text).substitute(
        q=f'"{schema}".{prefix}' if schema else prefix,
        p=prefix,
        id='text COLLATE "C"' if id_type == "text" else id_type,
        key=id_type,
    )


_STAMP = "COMMENT ON TABLE ${q}job IS 'sa_jobqueue version=2'"

# On tables that are there: `job` first, as workers lock them, and `worker` at the very end, for beats wait from then on.
_INDEXES = """\
CREATE INDEX ${p}ix_job_history ON ${q}job USING brin ((changed_xid::text::bigint >> 6)) WITH (pages_per_range = 32)
--;
CREATE INDEX ${p}ix_job_attempt_changed ON ${q}job_attempt (changed_xid)
--;
CREATE INDEX ${p}ix_dead_letter_changed ON ${q}dead_letter (changed_xid)"""

_DRAIN = "ALTER TABLE ${q}worker ADD COLUMN drain_requested_at timestamptz"

_TABLES = """\
CREATE UNLOGGED TABLE ${q}job_bulk_staging (
  write_id text NOT NULL,
  sequence bigint NOT NULL,
  task_id bigint NOT NULL,
  row bigint NOT NULL,
  id $id,
  queue text,
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
  staged_at timestamptz DEFAULT now() NOT NULL
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
  written_by text,
  written_at timestamptz DEFAULT now() NOT NULL,
  changed_xid xid8 DEFAULT pg_current_xact_id() NOT NULL,
  CONSTRAINT ${p}pk_job_bulk_write PRIMARY KEY (write_id, sequence)
)
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
  survivors bigint DEFAULT 0 NOT NULL,
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
  CONSTRAINT ${p}pk_archive_chain PRIMARY KEY (run_id, chain_id)
)
--;
CREATE INDEX ${p}ix_archive_chain_part ON ${q}archive_chain (run_id, part)"""

_ROUTINES = """\
CREATE TRIGGER ${p}tr_dead_letter_stamp BEFORE UPDATE ON ${q}dead_letter FOR EACH ROW
  WHEN (NEW.changed_xid IS DISTINCT FROM pg_current_xact_id()) EXECUTE FUNCTION ${q}job_stamp()"""

_DROP = """\
DROP TABLE ${q}archive_chain, ${q}archive_run, ${q}job_bulk_reject, ${q}job_bulk_write, ${q}job_bulk_staging
--;
DROP TRIGGER ${p}tr_dead_letter_stamp ON ${q}dead_letter
--;
DROP INDEX ${q}ix_dead_letter_changed
--;
DROP INDEX ${q}ix_job_attempt_changed
--;
DROP INDEX ${q}ix_job_history
--;
ALTER TABLE ${q}worker DROP COLUMN drain_requested_at"""

"""Version 3: queues, job types and schedules as rows; what a job may say of its lateness and its order.

Roll-out: before the code that uses it. Locks: ACCESS EXCLUSIVE on `job_bulk_staging`, `job`, then `worker`, each for a
moment: columns are added that are null everywhere, so no row is rewritten. All are held until the migration commits; the one
on `job` lasts three passes over the table, for the indexes on those columns, which begin empty.
"""

from __future__ import annotations

from string import Template

VERSION = 3


def upgrade(*, schema: str | None, prefix: str, id_type: str) -> list[str]:
    """Return the statements that lead from version 2 to version 3."""
    return [
        *_statements(_TABLES, schema, prefix, id_type),
        *_statements(_COLUMNS, schema, prefix, id_type),
        *routines(schema=schema, prefix=prefix, id_type=id_type),
        _render(_STAMP, schema, prefix, id_type),
    ]


def downgrade(*, schema: str | None, prefix: str, id_type: str) -> list[str]:
    """Return the statements that lead back to version 2. Queues, job types and schedules are lost, and those columns."""
    return [*_statements(_DROP, schema, prefix, id_type), _render(_STAMP, schema, prefix, id_type).replace("=3", "=2")]


def routines(*, schema: str | None, prefix: str, id_type: str) -> list[str]:
    """Return the functions and triggers: what the models' own `create_all` cannot make by itself."""
    return _statements(_ROUTINES, schema, prefix, id_type)


def _statements(text: str, schema: str | None, prefix: str, id_type: str) -> list[str]:
    return [statement.strip() for statement in _render(text, schema, prefix, id_type).split("\n--;\n") if statement.strip()]


def _render(text: str, schema: str | None, prefix: str, id_type: str) -> str:
    return Template(text).substitute(
        q=f'"{schema}".{prefix}' if schema else prefix,
        p=prefix,
        id='text COLLATE "C"' if id_type == "text" else id_type,
        channel=f"{schema or ''}.{prefix}job",
    )


_STAMP = "COMMENT ON TABLE ${q}job IS 'sa_jobqueue version=3'"

_TABLES = """\
CREATE TABLE ${q}queue (
  name text NOT NULL,
  paused_at timestamptz, paused_by text,
  weight smallint DEFAULT 1 NOT NULL,
  concurrency_per_key integer,
  global_concurrency integer,
  rate_limit integer, rate_period interval, rate_burst integer, rate_algorithm text,
  retry_base interval, retry_factor double precision, retry_cap interval,
  retain_completed interval, retain_cancelled interval, retain_dead interval,
  created_at timestamptz DEFAULT now() NOT NULL,
  updated_at timestamptz DEFAULT now() NOT NULL,
  CONSTRAINT ${p}pk_queue PRIMARY KEY (name),
  CONSTRAINT ${p}ck_queue_name CHECK (name <> ''),
  CONSTRAINT ${p}ck_queue_paused CHECK (paused_by IS NULL OR paused_at IS NOT NULL),
  CONSTRAINT ${p}ck_queue_times CHECK (paused_at BETWEEN '1900-01-01 00:00:00+00' AND '9000-01-01 00:00:00+00'
    AND created_at BETWEEN '1900-01-01 00:00:00+00' AND '9000-01-01 00:00:00+00'
    AND updated_at BETWEEN '1900-01-01 00:00:00+00' AND '9000-01-01 00:00:00+00'),
  CONSTRAINT ${p}ck_queue_global_concurrency CHECK (global_concurrency >= 1),
  CONSTRAINT ${p}ck_queue_rate CHECK ((rate_limit IS NULL) = (rate_period IS NULL) AND rate_limit >= 1
    AND rate_period > '0'::interval AND rate_period <= '36500 days'::interval
    AND (rate_burst IS NULL OR rate_limit IS NOT NULL) AND rate_burst >= 1
    AND (rate_algorithm IS NULL OR rate_limit IS NOT NULL)
    AND rate_algorithm IN ('token_bucket', 'sliding_window', 'local_token_bucket')
    AND (rate_burst IS NULL OR rate_algorithm IS DISTINCT FROM 'sliding_window')),
  CONSTRAINT ${p}ck_queue_weight CHECK (weight BETWEEN 1 AND 100),
  CONSTRAINT ${p}ck_queue_retry CHECK (num_nulls(retry_base, retry_factor, retry_cap) IN (0, 3)
    AND retry_base > '0'::interval AND retry_factor >= 1 AND retry_factor < 'Infinity'
    AND retry_cap BETWEEN retry_base AND '36500 days'::interval),
  CONSTRAINT ${p}ck_queue_concurrency_per_key CHECK (concurrency_per_key >= 1)
)
--;
CREATE TABLE ${q}job_type (
  type_name text NOT NULL,
  paused_at timestamptz, paused_by text,
  global_concurrency integer,
  rate_limit integer, rate_period interval, rate_burst integer, rate_algorithm text,
  created_at timestamptz DEFAULT now() NOT NULL,
  updated_at timestamptz DEFAULT now() NOT NULL,
  CONSTRAINT ${p}pk_job_type PRIMARY KEY (type_name),
  CONSTRAINT ${p}ck_job_type_type_name CHECK (type_name <> ''),
  CONSTRAINT ${p}ck_job_type_paused CHECK (paused_by IS NULL OR paused_at IS NOT NULL),
  CONSTRAINT ${p}ck_job_type_times CHECK (paused_at BETWEEN '1900-01-01 00:00:00+00' AND '9000-01-01 00:00:00+00'
    AND created_at BETWEEN '1900-01-01 00:00:00+00' AND '9000-01-01 00:00:00+00'
    AND updated_at BETWEEN '1900-01-01 00:00:00+00' AND '9000-01-01 00:00:00+00'),
  CONSTRAINT ${p}ck_job_type_global_concurrency CHECK (global_concurrency >= 1),
  CONSTRAINT ${p}ck_job_type_rate CHECK ((rate_limit IS NULL) = (rate_period IS NULL) AND rate_limit >= 1
    AND rate_period > '0'::interval AND rate_period <= '36500 days'::interval
    AND (rate_burst IS NULL OR rate_limit IS NOT NULL) AND rate_burst >= 1
    AND (rate_algorithm IS NULL OR rate_limit IS NOT NULL)
    AND rate_algorithm IN ('token_bucket', 'sliding_window', 'local_token_bucket')
    AND (rate_burst IS NULL OR rate_algorithm IS DISTINCT FROM 'sliding_window'))
)
--;
CREATE TABLE ${q}schedule (
  name text NOT NULL,
  type_name text NOT NULL,
  queue text DEFAULT 'default' NOT NULL,
  priority smallint DEFAULT 0 NOT NULL,
  input jsonb, input_version integer DEFAULT 1 NOT NULL,
  fire_time_field text,
  max_attempts integer DEFAULT 20 NOT NULL,
  timeout interval,
  rate_cost integer,
  cron text NOT NULL,
  time_zone text DEFAULT 'UTC' NOT NULL,
  misfire_policy text DEFAULT 'one' NOT NULL, catch_up integer DEFAULT 100 NOT NULL,
  grace interval DEFAULT '00:01:00' NOT NULL,
  overlap boolean DEFAULT true NOT NULL,
  paused_at timestamptz, paused_by text,
  next_fire_at timestamptz, last_fire_at timestamptz,
  error text,
  source text DEFAULT 'table' NOT NULL,
  created_at timestamptz DEFAULT now() NOT NULL,
  updated_at timestamptz DEFAULT now() NOT NULL,
  last_job_id $id,
  CONSTRAINT ${p}pk_schedule PRIMARY KEY (name),
  CONSTRAINT ${p}ck_schedule_name CHECK (name <> ''),
  CONSTRAINT ${p}ck_schedule_priority CHECK (priority BETWEEN -9 AND 9),
  CONSTRAINT ${p}ck_schedule_misfire_policy CHECK (misfire_policy IN ('skip', 'one', 'all')),
  CONSTRAINT ${p}ck_schedule_catch_up CHECK (catch_up BETWEEN 1 AND 10000),
  CONSTRAINT ${p}ck_schedule_grace CHECK (grace >= '0'::interval AND grace <= '3650 days'::interval),
  CONSTRAINT ${p}ck_schedule_max_attempts CHECK (max_attempts >= 1),
  CONSTRAINT ${p}ck_schedule_timeout CHECK (timeout > '0'::interval AND timeout <= '36500 days'::interval),
  CONSTRAINT ${p}ck_schedule_times CHECK (next_fire_at BETWEEN '1900-01-01 00:00:00+00' AND '9000-01-01 00:00:00+00'
    AND last_fire_at BETWEEN '1900-01-01 00:00:00+00' AND '9000-01-01 00:00:00+00'
    AND paused_at BETWEEN '1900-01-01 00:00:00+00' AND '9000-01-01 00:00:00+00'
    AND created_at BETWEEN '1900-01-01 00:00:00+00' AND '9000-01-01 00:00:00+00'
    AND updated_at BETWEEN '1900-01-01 00:00:00+00' AND '9000-01-01 00:00:00+00'),
  CONSTRAINT ${p}ck_schedule_rate_cost CHECK (rate_cost BETWEEN 1 AND 1000000),
  CONSTRAINT ${p}ck_schedule_source CHECK (source IN ('code', 'table')),
  CONSTRAINT ${p}ck_schedule_paused CHECK (paused_by IS NULL OR paused_at IS NOT NULL)
)
--;
CREATE INDEX ${p}ix_schedule_due ON ${q}schedule (next_fire_at)
--;
CREATE TABLE ${q}rate_state (
  is_type boolean NOT NULL,
  name text NOT NULL,
  version bigint DEFAULT 1 NOT NULL,
  tokens double precision,
  starts bigint[],
  spent_at timestamptz NOT NULL,
  CONSTRAINT ${p}pk_rate_state PRIMARY KEY (is_type, name, version),
  CONSTRAINT ${p}ck_rate_state_tokens CHECK (abs(tokens) <= 1e15),
  CONSTRAINT ${p}ck_rate_state_starts CHECK (array_position(starts, NULL) IS NULL AND cardinality(starts) % 2 = 0
    AND 0 <= ALL (starts) AND 221845392000000000 > ALL (starts)),
  CONSTRAINT ${p}ck_rate_state_times CHECK (spent_at BETWEEN '1900-01-01 00:00:00+00' AND '9000-01-01 00:00:00+00')
)
--;
CREATE TABLE ${q}quarantine (
  subject text NOT NULL,
  statement text NOT NULL,
  sqlstate text,
  error text NOT NULL,
  worker_id text,
  failures integer DEFAULT 1 NOT NULL,
  first_failed_at timestamptz DEFAULT now() NOT NULL,
  retry_at timestamptz NOT NULL,
  CONSTRAINT ${p}pk_quarantine PRIMARY KEY (subject, statement)
)"""

# On tables that are there: `job_bulk_staging` before `job`, as the commit of a bulk write locks them; then `job`, as workers
# lock them, and `worker` at the very end, for beats wait from then on.
_COLUMNS = """\
ALTER TABLE ${q}job_bulk_staging ADD COLUMN rate_cost integer, ADD COLUMN expires_at timestamptz
--;
ALTER TABLE ${q}job_bulk_staging ADD COLUMN ordering_key text, ADD COLUMN skip_while_retrying boolean
--;
ALTER TABLE ${q}job ADD COLUMN expires_at timestamptz, ADD COLUMN ordering_key text, ADD COLUMN skip_while_retrying boolean
--;
ALTER TABLE ${q}job ADD COLUMN rate_cost integer
--;
CREATE INDEX ${p}ix_job_expiring ON ${q}job (expires_at) WHERE status = 'pending' AND expires_at IS NOT NULL
--;
CREATE INDEX ${p}ix_job_ordering ON ${q}job (ordering_key, created_at, id)
  WHERE ordering_key IS NOT NULL AND status IN ('blocked', 'pending')
--;
CREATE UNIQUE INDEX ${p}uq_job_ordering ON ${q}job (ordering_key) WHERE ordering_key IS NOT NULL AND leased_by IS NOT NULL
--;
CREATE INDEX ${p}ix_job_ordering_freed ON ${q}job (changed_xid)
  WHERE ordering_key IS NOT NULL AND leased_by IS NULL AND (completed_at IS NOT NULL OR started_at IS NOT NULL)
--;
ALTER TABLE ${q}worker ADD COLUMN selectors jsonb, ADD COLUMN type_slots jsonb, ADD COLUMN concurrency_requested integer,
  ADD CONSTRAINT ${p}ck_worker_concurrency_requested CHECK (concurrency_requested >= 1)"""

# A job that was deleted is not there to tell workers that it has let its ordering key go: the next one is stamped for it,
# also where it ended so lately that not all of them may have seen that. And where that one steps aside until it is due, the
# next that does not; it is stamped in any case, for it may be due before this commits. SKIP LOCKED, for whoever holds a row
# may be waiting for ours.
# The keys are noted row by row, in a setting that is rolled back with the transaction, and what is next of them is stamped
# at the end of the statement, sooner when the note is long, for each key is added to a copy of it: one that deletes all of
# a key would walk past all of them for each. The WHEN clause keeps every other job out of plpgsql; a transition table would
# hold a copy of each, and made the deletion of jobs without a key take a fifth longer.
# A worker that completes a job unblocks what waits for it; any other end of a job, by an operation or by SQL, notifies the
# workers, where something can be waiting for it: for its chain, which a continuation cannot tell, or for its ordering key.
# So of two transactions that end two chains at once, and of which one skips the waiting job that the other holds, the later
# commit has a worker look, which sees both. The same where somebody begins to wait for a chain that has ended.
_ROUTINES = """\
CREATE FUNCTION ${q}job_deleted() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$$$
DECLARE
  note text := 'sa_jobqueue.deleted_' || TG_RELID;
  keys text := COALESCE(current_setting(note, true), '');
BEGIN
  IF TG_LEVEL = 'ROW' THEN
    keys := concat_ws(',', NULLIF(keys, ''), to_json(OLD.ordering_key));
    IF length(keys) < 10000 THEN
      PERFORM set_config(note, keys, true);
      RETURN NULL;
    END IF;
  ELSIF keys = '' THEN
    RETURN NULL;
  END IF;
  PERFORM set_config(note, '', true);
  UPDATE ${q}job SET changed_xid = pg_current_xact_id() WHERE status = 'pending' AND id = ANY (ARRAY(
    SELECT unnest(ARRAY[first.id, other.id])
    FROM (SELECT DISTINCT json_array_elements_text(('[' || keys || ']')::json) AS key) AS gone
    CROSS JOIN LATERAL (
      SELECT id,
        COALESCE(skip_while_retrying, false) AND status = 'pending' AND attempt > 0 AND scheduled_at > now() AS is_aside
      FROM ${q}job WHERE ordering_key = gone.key AND ordering_key IS NOT NULL AND status IN ('blocked', 'pending')
      ORDER BY ordering_key, created_at, id LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED) AS first
    LEFT JOIN LATERAL (
      SELECT id FROM ${q}job
      WHERE first.is_aside AND ordering_key = gone.key AND ordering_key IS NOT NULL AND status IN ('blocked', 'pending')
        AND NOT (COALESCE(skip_while_retrying, false) AND status = 'pending' AND attempt > 0 AND scheduled_at > now())
      ORDER BY ordering_key, created_at, id LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED) AS other ON true));
  PERFORM pg_notify('${channel}:unblock', '');
  RETURN NULL;
END $$$$
--;
CREATE TRIGGER ${p}tr_job_deleted AFTER DELETE ON ${q}job FOR EACH ROW
  WHEN (OLD.ordering_key IS NOT NULL AND COALESCE(OLD.completed_at > now() - interval '1 minute', true))
  EXECUTE FUNCTION ${q}job_deleted()
--;
CREATE TRIGGER ${p}tr_job_next AFTER DELETE ON ${q}job FOR EACH STATEMENT EXECUTE FUNCTION ${q}job_deleted()
--;
CREATE FUNCTION ${q}job_unblock() RETURNS trigger LANGUAGE plpgsql AS $$$$
BEGIN
  PERFORM pg_notify('${channel}:unblock', '');
  RETURN NEW;
END $$$$
--;
CREATE TRIGGER ${p}tr_job_unblock BEFORE UPDATE ON ${q}job FOR EACH ROW
  WHEN (NEW.completed_by IS NULL AND NEW.completed_at IS NOT NULL AND OLD.completed_at IS NULL
      AND (NEW.has_waiters OR NEW.chain_index > 0 OR NEW.ordering_key IS NOT NULL)
    OR NEW.has_waiters AND NOT OLD.has_waiters AND NEW.chain_completed_at IS NOT NULL)
  EXECUTE FUNCTION ${q}job_unblock()"""

_DROP = """\
DROP TRIGGER ${p}tr_job_unblock ON ${q}job
--;
DROP FUNCTION ${q}job_unblock()
--;
DROP TRIGGER ${p}tr_job_next ON ${q}job
--;
DROP TRIGGER ${p}tr_job_deleted ON ${q}job
--;
DROP FUNCTION ${q}job_deleted()
--;
ALTER TABLE ${q}job_bulk_staging DROP COLUMN skip_while_retrying, DROP COLUMN ordering_key,
  DROP COLUMN expires_at, DROP COLUMN rate_cost
--;
DROP TABLE ${q}quarantine, ${q}rate_state, ${q}schedule, ${q}job_type, ${q}queue
--;
DROP INDEX ${q}ix_job_ordering_freed
--;
DROP INDEX ${q}uq_job_ordering
--;
DROP INDEX ${q}ix_job_ordering
--;
DROP INDEX ${q}ix_job_expiring
--;
ALTER TABLE ${q}job DROP COLUMN rate_cost, DROP COLUMN skip_while_retrying, DROP COLUMN ordering_key, DROP COLUMN expires_at
--;
ALTER TABLE ${q}worker DROP COLUMN concurrency_requested, DROP COLUMN type_slots, DROP COLUMN selectors"""

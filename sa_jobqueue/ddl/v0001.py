"""Version 1 of the queue: its tables, indexes, functions, triggers and views.

Roll-out: before the code that uses it. Locks: none on existing tables.
"""

from __future__ import annotations

import hashlib
import re
from itertools import count
from string import Template
from typing import Any

VERSION = 1


def upgrade(**names: Any) -> list[str]:
    """Return the statements that take an empty place to version 1. `names`: as in `statements`."""
    tables = [statement for part in (_TABLES, ROUTINES, _STAMP) for statement in statements(part, **names)]
    return [*statements(_SERVER_GUARD, **names), *place(**names), *tables]


def downgrade(**names: Any) -> list[str]:
    """Return the statements that remove version 1, and the schema if nothing else lives in it. All jobs are lost."""
    own_schema = names["schema"] not in {None, "public"}  # which every database has, and its grants with it
    parts = (DROP_VIEWS, _DROP_TABLES, DROP_FUNCTIONS, _DROP_TYPES, *([_DROP_SCHEMA] if own_schema else []))
    return [statement for part in parts for statement in statements(part, **names)]


def place(**names: Any) -> list[str]:
    """Return the statement that makes the schema where it is missing; none on the search path."""
    return statements(_CREATE_SCHEMA, **names) if names["schema"] else []


def quoted(name: str) -> str:
    """Return an identifier as SQL text."""
    return '"{}"'.format(name.replace('"', '""'))


def channel(schema: str | None, prefix: str) -> str:
    """Return the start of the names of a queue's notification channels and advisory locks, at most 55 bytes.

    PostgreSQL allows 63 bytes for a channel, and folds or cuts no name that `pg_notify` is given.
    """
    name = f"{schema or ''}.{prefix}job"
    if re.fullmatch(r"[a-z0-9_.]{1,55}", name):
        return name
    return f"job:{hashlib.sha256(name.encode()).hexdigest()[:32]}"


def statements(text: str, *, schema: str | None, prefix: str, id_type: str) -> list[str]:
    """Return the statements of a template, with the names of one queue."""
    # $q is the qualified start of a name, $p its bare start; the percent-free `$name` form leaves plpgsql's own % alone.
    # The bodies of functions are between dollar quotes that are in no name.
    body = next(tag for tag in (f"${'_' * length}$" for length in count()) if tag not in (schema or ""))
    start = f"{quoted(schema)}.{prefix}" if schema else prefix
    names: dict[str, str] = {
        "q": start,
        "p": prefix,
        "body": body,
        "job_text": _literal(f"{start}job"),
        # By code point, as Python sorts it: a worker compares keys that the database ordered.
        "id": 'text COLLATE "C"' if id_type == "text" else id_type,
        "key": id_type,
        "schema": quoted(schema or ""),
        "schema_text": _literal(quoted(schema or "")),
        "channel": channel(schema, prefix),
    }
    return [Template(part).substitute(names).strip() for part in text.replace("$$$$", "${body}").split("\n--;\n")]


def _literal(text: str) -> str:
    """Return text as an SQL literal, right under any `standard_conforming_strings`."""
    escaped = text.replace("\\", r"\\").replace("'", "''")
    return f"E'{escaped}'" if "\\" in text else f"'{escaped}'"


_SERVER_GUARD = """\
DO $$$$ BEGIN
  IF current_setting('server_version_num')::int < 150000 THEN
    RAISE EXCEPTION 'sa_jobqueue needs PostgreSQL 15 or newer, this server is %', current_setting('server_version');
  END IF;
END $$$$"""


# Not IF NOT EXISTS: that asks for the right to create schemas even where the schema is there.
_CREATE_SCHEMA = """\
DO $$$$ BEGIN
  IF to_regnamespace($schema_text) IS NULL THEN
    CREATE SCHEMA $schema;
  END IF;
END $$$$"""

_TABLES = """\
CREATE TYPE ${q}job_status AS ENUM ('blocked', 'pending', 'running', 'completed', 'dead', 'cancelled')
--;
CREATE TYPE ${q}job_blocker_on_failure AS ENUM ('wait', 'fail', 'continue')
--;
CREATE TYPE ${q}job_attempt_outcome AS ENUM (
  'failed', 'timed_out', 'lost', 'snoozed', 'released', 'cancelled', 'superseded')
--;
CREATE TYPE ${q}dead_letter_reason AS ENUM (
  'exhausted', 'discarded', 'invalid_input', 'timed_out', 'lost', 'blocker_failed')
--;
CREATE TYPE ${q}dead_letter_resolution AS ENUM ('redriven', 'dismissed')
--;
CREATE TABLE ${q}job (
  id $id NOT NULL,
  queue text NOT NULL, fairness_key text DEFAULT '' NOT NULL,
  type_name text NOT NULL,
  priority smallint NOT NULL,
  chain_id $id NOT NULL, chain_type_name text NOT NULL, chain_index integer DEFAULT 0 NOT NULL,
  root_id $id GENERATED ALWAYS AS (NULLIF(chain_id, id)) STORED,
  input jsonb, input_version integer NOT NULL, output jsonb,
  status ${q}job_status DEFAULT 'pending' NOT NULL,
  open_blockers integer DEFAULT 0 NOT NULL, has_waiters boolean DEFAULT false NOT NULL,
  created_at timestamptz DEFAULT now() NOT NULL,
  scheduled_at timestamptz DEFAULT now() NOT NULL,
  started_at timestamptz,
  completed_at timestamptz, completed_by text,
  attempt integer DEFAULT 0 NOT NULL, max_attempts integer NOT NULL,
  timeout interval,
  last_error jsonb,
  leased_by text, leased_until timestamptz,
  deduplication_key text,
  chain_completed_at timestamptz,
  trace_context text, chain_trace_context text,
  changed_xid xid8 DEFAULT pg_current_xact_id() NOT NULL,
  chain_status ${q}job_status,
  expires_at timestamptz,
  ordering_key text,
  rate_cost integer,
  deadline timestamptz,
  CONSTRAINT ${p}pk_job PRIMARY KEY (id),
  CONSTRAINT ${p}fk_job_root FOREIGN KEY (root_id) REFERENCES ${q}job (id),
  CONSTRAINT ${p}ck_job_queue CHECK (queue <> ''),
  CONSTRAINT ${p}ck_job_fairness_key CHECK (length(fairness_key) <= 100),
  CONSTRAINT ${p}ck_job_deduplication_key
    CHECK (length(deduplication_key) BETWEEN 1 AND 500 AND octet_length(deduplication_key) <= 1000),
  CONSTRAINT ${p}ck_job_ordering_key
    CHECK (length(ordering_key) BETWEEN 1 AND 500 AND octet_length(ordering_key) <= 1000),
  CONSTRAINT ${p}ck_job_type_name CHECK (type_name <> ''),
  CONSTRAINT ${p}ck_job_priority CHECK (priority BETWEEN -9 AND 9),
  CONSTRAINT ${p}ck_job_attempts CHECK (attempt >= 0 AND max_attempts >= 1),
  CONSTRAINT ${p}ck_job_timeout CHECK (timeout > '0'::interval),
  CONSTRAINT ${p}ck_job_times CHECK (scheduled_at BETWEEN '1900-01-01 00:00:00+00' AND '9000-01-01 00:00:00+00'
    AND timeout <= '36500 days'::interval
    AND deadline BETWEEN '0001-01-01 00:00:00+00' AND '9000-01-01 00:00:00+00'),
  CONSTRAINT ${p}ck_job_chain CHECK ((chain_index = 0) = (chain_id = id)),
  CONSTRAINT ${p}ck_job_chain_status CHECK (chain_status IS NULL OR (chain_index = 0 AND chain_completed_at IS NOT NULL)),
  CONSTRAINT ${p}ck_job_blocked CHECK ((status <> 'blocked' OR open_blockers > 0) AND open_blockers >= 0),
  CONSTRAINT ${p}ck_job_lease CHECK ((status = 'running') = (leased_by IS NOT NULL)),
  CONSTRAINT ${p}ck_job_ended CHECK ((status IN ('completed', 'dead', 'cancelled')) = (completed_at IS NOT NULL))
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
  autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 20000,
  autovacuum_vacuum_insert_scale_factor = 0.05)
--;
CREATE INDEX ${p}ix_job_claim ON ${q}job (queue, fairness_key, priority, scheduled_at, id)
  WHERE status = 'pending' AND priority >= '-9'
--;
CREATE INDEX ${p}ix_job_changed ON ${q}job (changed_xid) WHERE status = 'pending' AND changed_xid > '0'
--;
CREATE INDEX ${p}ix_job_running ON ${q}job (leased_by, changed_xid, leased_until) WHERE status = 'running'
--;
CREATE INDEX ${p}ix_job_has_waiters ON ${q}job (id) WHERE has_waiters AND chain_completed_at IS NOT NULL
--;
CREATE INDEX ${p}ix_job_blocked_or_dead ON ${q}job (id) WHERE status IN ('blocked', 'dead')
--;
CREATE UNIQUE INDEX ${p}uq_job_chain ON ${q}job (root_id, chain_index) WHERE root_id IS NOT NULL
--;
CREATE UNIQUE INDEX ${p}uq_job_deduplication ON ${q}job (chain_type_name, deduplication_key)
  WHERE deduplication_key IS NOT NULL AND chain_index = 0 AND chain_completed_at IS NULL
--;
CREATE INDEX ${p}ix_job_deduplication ON ${q}job (chain_type_name, deduplication_key, created_at)
  WHERE deduplication_key IS NOT NULL AND chain_index = 0
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
CREATE INDEX ${p}ix_job_history ON ${q}job USING brin ((changed_xid::text::bigint >> 6)) WITH (pages_per_range = 32)
--;
CREATE TABLE ${q}job_blocker (
  job_id $id NOT NULL,
  blocked_by_chain_id $id NOT NULL,
  index integer NOT NULL,
  is_resolved boolean DEFAULT false NOT NULL,
  on_failure ${q}job_blocker_on_failure DEFAULT 'wait' NOT NULL,
  trace_context text,
  CONSTRAINT ${p}pk_job_blocker PRIMARY KEY (job_id, blocked_by_chain_id),
  CONSTRAINT ${p}fk_job_blocker_job FOREIGN KEY (job_id) REFERENCES ${q}job (id),
  CONSTRAINT ${p}fk_job_blocker_chain FOREIGN KEY (blocked_by_chain_id) REFERENCES ${q}job (id)
)
--;
CREATE INDEX ${p}ix_job_blocker_chain ON ${q}job_blocker (blocked_by_chain_id, job_id)
--;
CREATE TABLE ${q}job_attempt (
  job_id $id NOT NULL,
  attempt integer NOT NULL,
  worker_id text,
  started_at timestamptz,
  ended_at timestamptz DEFAULT now() NOT NULL,
  outcome ${q}job_attempt_outcome NOT NULL,
  error jsonb,
  error_fingerprint text,
  changed_xid xid8 DEFAULT pg_current_xact_id() NOT NULL,
  CONSTRAINT ${p}pk_job_attempt PRIMARY KEY (job_id, attempt)
)
--;
CREATE INDEX ${p}ix_job_attempt_changed ON ${q}job_attempt (changed_xid)
--;
CREATE TABLE ${q}job_step (
  job_id $id NOT NULL,
  name text NOT NULL, key text DEFAULT '' NOT NULL,
  kind text NOT NULL,
  attempt integer NOT NULL,
  output jsonb,
  started_at timestamptz NOT NULL, completed_at timestamptz,
  event text, deadline timestamptz,
  child_chain_id $id,
  CONSTRAINT ${p}pk_job_step PRIMARY KEY (job_id, name, key),
  CONSTRAINT ${p}ck_job_step_kind CHECK (kind IN (
    'step', 'failure', 'retry', 'transaction', 'sleep', 'wait', 'cursor', 'run'
  )),
  CONSTRAINT ${p}ck_job_step_name CHECK (name <> '')
)
--;
CREATE INDEX ${p}ix_job_step_event ON ${q}job_step (event) WHERE event IS NOT NULL AND completed_at IS NULL
--;
CREATE INDEX ${p}ix_job_step_child ON ${q}job_step (child_chain_id)
  WHERE child_chain_id IS NOT NULL AND completed_at IS NULL
--;
CREATE TABLE ${q}job_event (
  name text NOT NULL,
  payload jsonb NOT NULL,
  sent_at timestamptz DEFAULT now() NOT NULL, sent_by text DEFAULT SESSION_USER NOT NULL,
  expires_at timestamptz NOT NULL,
  CONSTRAINT ${p}pk_job_event PRIMARY KEY (name),
  CONSTRAINT ${p}ck_job_event_name CHECK (length(name) BETWEEN 1 AND 200)
)
--;
CREATE INDEX ${p}ix_job_event_expires ON ${q}job_event (expires_at)
--;
CREATE TABLE ${q}job_minute (
  minute timestamptz NOT NULL,
  queue text NOT NULL, type_name text NOT NULL,
  enqueued integer NOT NULL,
  completed integer NOT NULL, failed integer NOT NULL, died integer NOT NULL, cancelled integer NOT NULL,
  due integer NOT NULL, running integer NOT NULL,
  wait integer[] NOT NULL, run integer[] NOT NULL,
  CONSTRAINT ${p}pk_job_minute PRIMARY KEY (minute, queue, type_name)
)
--;
CREATE TABLE ${q}dead_letter (
  id $id NOT NULL,
  job_id $id NOT NULL,
  chain_id $id NOT NULL,
  queue text NOT NULL, fairness_key text DEFAULT '' NOT NULL,
  type_name text NOT NULL,
  input jsonb,
  input_version integer NOT NULL,
  reason ${q}dead_letter_reason NOT NULL,
  error jsonb, error_fingerprint text, attempts integer NOT NULL,
  died_at timestamptz DEFAULT now() NOT NULL,
  resolution ${q}dead_letter_resolution, resolved_at timestamptz, resolved_by text,
  changed_xid xid8 DEFAULT pg_current_xact_id() NOT NULL,
  CONSTRAINT ${p}pk_dead_letter PRIMARY KEY (id),
  CONSTRAINT ${p}ck_dead_letter_resolved CHECK ((resolution IS NULL) = (resolved_at IS NULL))
)
--;
CREATE UNIQUE INDEX ${p}uq_dead_letter_open ON ${q}dead_letter (job_id) WHERE resolution IS NULL
--;
CREATE INDEX ${p}ix_dead_letter_job ON ${q}dead_letter (job_id)
--;
CREATE INDEX ${p}ix_dead_letter_changed ON ${q}dead_letter (changed_xid)
--;
CREATE TABLE ${q}worker (
  id text NOT NULL,
  name text NOT NULL,
  host text NOT NULL,
  pid integer NOT NULL,
  version text NOT NULL,
  queues text[] NOT NULL,
  job_types text[] NOT NULL,
  concurrency integer NOT NULL,
  started_at timestamptz DEFAULT now() NOT NULL,
  heartbeat_at timestamptz DEFAULT now() NOT NULL,
  heartbeat_pause interval DEFAULT '0' NOT NULL,
  state text DEFAULT 'running' NOT NULL,
  drain_requested_at timestamptz,
  selectors jsonb, type_slots jsonb, type_versions jsonb, progress jsonb, report jsonb,
  stuck_threads integer DEFAULT 0 NOT NULL,
  failure text,
  concurrency_requested integer,
  CONSTRAINT ${p}pk_worker PRIMARY KEY (id),
  CONSTRAINT ${p}ck_worker_state CHECK (state IN ('running', 'draining')),
  CONSTRAINT ${p}ck_worker_concurrency_requested CHECK (concurrency_requested >= 1)
) WITH (fillfactor = 10, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000)
--;
CREATE TABLE ${q}queue (
  name text NOT NULL, fairness_key text DEFAULT '' NOT NULL,
  paused_at timestamptz, paused_by text,
  weight smallint DEFAULT 1 NOT NULL,
  concurrency_per_key integer,
  global_concurrency integer,
  rate_limit integer, rate_period interval, rate_burst integer,
  retry_base interval, retry_factor double precision, retry_cap interval,
  retain_completed interval, retain_cancelled interval, retain_dead interval,
  created_at timestamptz DEFAULT now() NOT NULL,
  updated_at timestamptz DEFAULT now() NOT NULL,
  CONSTRAINT ${p}pk_queue PRIMARY KEY (name, fairness_key),
  CONSTRAINT ${p}ck_queue_name CHECK (name <> ''),
  CONSTRAINT ${p}ck_queue_paused CHECK (paused_by IS NULL OR paused_at IS NOT NULL),
  CONSTRAINT ${p}ck_queue_times CHECK (paused_at BETWEEN '1900-01-01 00:00:00+00' AND '9000-01-01 00:00:00+00'
    AND created_at BETWEEN '1900-01-01 00:00:00+00' AND '9000-01-01 00:00:00+00'
    AND updated_at BETWEEN '1900-01-01 00:00:00+00' AND '9000-01-01 00:00:00+00'),
  CONSTRAINT ${p}ck_queue_global_concurrency CHECK (global_concurrency >= 1),
  CONSTRAINT ${p}ck_queue_rate CHECK ((rate_limit IS NULL) = (rate_period IS NULL) AND rate_limit >= 1
    AND rate_period > '0'::interval AND rate_period <= '36500 days'::interval
    AND (rate_burst IS NULL OR rate_limit IS NOT NULL) AND rate_burst >= 1),
  CONSTRAINT ${p}ck_queue_weight CHECK (weight BETWEEN 1 AND 100),
  CONSTRAINT ${p}ck_queue_retry CHECK (num_nulls(retry_base, retry_factor, retry_cap) IN (0, 3)
    AND retry_base > '0'::interval AND retry_factor >= 1 AND retry_factor < 'Infinity'
    AND retry_cap BETWEEN retry_base AND '36500 days'::interval),
  CONSTRAINT ${p}ck_queue_concurrency_per_key CHECK (concurrency_per_key >= 1),
  CONSTRAINT ${p}ck_queue_retention CHECK (retain_completed BETWEEN '0'::interval AND '36500 days'::interval
    AND retain_cancelled BETWEEN '0'::interval AND '36500 days'::interval
    AND retain_dead BETWEEN '0'::interval AND '36500 days'::interval)
)
--;
CREATE TABLE ${q}job_type (
  type_name text NOT NULL,
  paused_at timestamptz, paused_by text,
  queue text, priority smallint, max_attempts integer, timeout interval, rate_cost integer, input_version integer,
  global_concurrency integer,
  rate_limit integer, rate_period interval, rate_burst integer,
  created_at timestamptz DEFAULT now() NOT NULL,
  updated_at timestamptz DEFAULT now() NOT NULL,
  CONSTRAINT ${p}pk_job_type PRIMARY KEY (type_name),
  CONSTRAINT ${p}ck_job_type_type_name CHECK (type_name <> ''),
  CONSTRAINT ${p}ck_job_type_paused CHECK (paused_by IS NULL OR paused_at IS NOT NULL),
  CONSTRAINT ${p}ck_job_type_times CHECK (paused_at BETWEEN '1900-01-01 00:00:00+00' AND '9000-01-01 00:00:00+00'
    AND created_at BETWEEN '1900-01-01 00:00:00+00' AND '9000-01-01 00:00:00+00'
    AND updated_at BETWEEN '1900-01-01 00:00:00+00' AND '9000-01-01 00:00:00+00'),
  CONSTRAINT ${p}ck_job_type_declared CHECK (queue <> '' AND priority BETWEEN -9 AND 9 AND max_attempts >= 1
    AND timeout > '0'::interval AND timeout <= '36500 days'::interval AND rate_cost BETWEEN 1 AND 1000000
    AND input_version >= 1),
  CONSTRAINT ${p}ck_job_type_global_concurrency CHECK (global_concurrency >= 1),
  CONSTRAINT ${p}ck_job_type_rate CHECK ((rate_limit IS NULL) = (rate_period IS NULL) AND rate_limit >= 1
    AND rate_period > '0'::interval AND rate_period <= '36500 days'::interval
    AND (rate_burst IS NULL OR rate_limit IS NOT NULL) AND rate_burst >= 1)
)
--;
CREATE TABLE ${q}schedule (
  name text NOT NULL,
  type_name text NOT NULL,
  queue text, fairness_key text DEFAULT '' NOT NULL,
  priority smallint,
  input jsonb, input_version integer,
  fire_time_field text,
  max_attempts integer,
  timeout interval,
  rate_cost integer,
  cron text NOT NULL,
  time_zone text DEFAULT 'UTC' NOT NULL,
  misfire_policy text DEFAULT 'one' NOT NULL, catch_up integer DEFAULT 100 NOT NULL,
  grace interval DEFAULT '00:01:00' NOT NULL,
  overlap boolean DEFAULT true NOT NULL,
  paused_at timestamptz, paused_by text,
  next_fire_at timestamptz, last_fire_at timestamptz,
  fired tstzmultirange DEFAULT '{}' NOT NULL,
  missed_from timestamptz, missed_until timestamptz,
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
    AND missed_from BETWEEN '1900-01-01 00:00:00+00' AND '9000-01-01 00:00:00+00'
    AND missed_until BETWEEN '1900-01-01 00:00:00+00' AND '9000-01-01 00:00:00+00'
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
  name text NOT NULL, fairness_key text DEFAULT '' NOT NULL,
  version bigint DEFAULT 1 NOT NULL,
  tokens double precision,
  spent_at timestamptz NOT NULL,
  CONSTRAINT ${p}pk_rate_state PRIMARY KEY (is_type, name, fairness_key, version),
  CONSTRAINT ${p}ck_rate_state_version CHECK (version BETWEEN 1 AND 1000000000000000000),
  CONSTRAINT ${p}ck_rate_state_tokens CHECK (abs(tokens) <= 1e15),
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
)
--;
CREATE TABLE ${q}threshold (
  name text NOT NULL,
  queue text DEFAULT '' NOT NULL,
  value double precision NOT NULL,
  CONSTRAINT ${p}pk_threshold PRIMARY KEY (name, queue),
  CONSTRAINT ${p}ck_threshold_value CHECK (value > 0 AND value <= 1e13)
)
--;
CREATE TABLE ${q}job_audit (
  id uuid NOT NULL,
  done_at timestamptz DEFAULT now() NOT NULL,
  done_by text NOT NULL,
  operation text NOT NULL,
  arguments jsonb NOT NULL,
  matched integer NOT NULL,
  changed integer NOT NULL,
  ids jsonb NOT NULL,
  CONSTRAINT ${p}pk_job_audit PRIMARY KEY (id)
)"""

# Legality is decided in the triggers' WHEN clauses, which the executor evaluates itself: a legal change written by the
# library never enters plpgsql. The function of `tr_job_stamp` runs only for a statement that did not set `changed_xid`
# itself: a change written by hand, whose consequences it writes as well. Only the insert of edges is checked by a function,
# once a statement: whether edges agree with their job is in another table. The text of a payload is measured only where
# it can be long: of 250 bytes of jsonb, at most some 3 MB of text can come, a number of 131,072 digits in 12 bytes each.
#
# Deleting a job releases its ordering key, and no row is left that could show it to the workers: the next job of the
# key is stamped instead. If that one is skipped while it waits for a retry, so is the next that is not, and it is
# stamped in any case, for it may be due before this commits. SKIP LOCKED, because the transaction that holds a row may
# wait for ours.
# Once a statement, because deleting all jobs of a key would otherwise walk past all of them for each. The same function
# deletes the steps and attempts of the jobs, and dismisses their dead letters, so that a DELETE by hand leaves none behind
# which a later job with the same id would take for its own. Foreign keys with ON DELETE CASCADE would run a
# statement for each deleted job, and look at the job for each step and attempt that is recorded.
# A row that leaves out queue, priority, attempts or the version of its input has the recorded values of its type.
# One that gives all four is complete: no function runs for it, and a timeout that it leaves out is no timeout.
# No attempt of a job with a deadline starts after it: `expires_at`, which claims compare, is never later.
# job_refuse is also for deletions from the view, whose rows have no open_blockers: it sees to these before it reads that.
# A worker that completes a job unblocks the jobs that wait for it. Any other end of a job, by an operation or by SQL,
# notifies the workers if a job can be waiting for its chain, which a continuation cannot know, or for its ordering key.
# So if two transactions end two chains at once, and one skips the waiting job that the other holds, the later commit
# makes a worker check, and it sees both. The same applies when a job begins to wait for a chain that has ended.
ROUTINES = """\
CREATE FUNCTION ${q}job_refuse() RETURNS trigger LANGUAGE plpgsql AS $$$$
BEGIN
  IF TG_OP <> 'DELETE' AND octet_length(NEW.input::text) > 4194304 THEN
    RAISE EXCEPTION 'input: must be at most 4194304 bytes of JSON text, got %', octet_length(NEW.input::text)
      USING ERRCODE = 'SJ002', TABLE = TG_TABLE_NAME, COLUMN = 'input',
        HINT = 'store the data elsewhere and enqueue a reference to it';
  ELSIF TG_OP = 'DELETE' THEN
    RAISE EXCEPTION 'job %: cannot be deleted through this view, only cancelled', OLD.id
      USING ERRCODE = 'SJ003', HINT = 'set its status to cancelled';
  ELSIF TG_OP = 'INSERT' AND NEW.status = 'blocked' AND NEW.open_blockers = 0 THEN
    RAISE EXCEPTION 'job %: is blocked, and its blockers were not written', NEW.id
      USING ERRCODE = 'SJ003', TABLE = TG_TABLE_NAME, COLUMN = 'open_blockers',
        HINT = 'use session.add or enqueue_many: bulk_save_objects and bulk_insert_mappings leave blockers out; '
          'in SQL, insert the job with as many open_blockers, and all of its blockers in one statement';
  ELSIF TG_OP = 'INSERT' AND NEW.status IN ('pending', 'blocked') THEN
    RAISE EXCEPTION 'job %: role % cannot continue chain %: it has no right to update the status of jobs',
      NEW.id, current_user, NEW.chain_id USING ERRCODE = '42501', TABLE = TG_TABLE_NAME, COLUMN = 'chain_id',
        HINT = 'a continuation is inserted by the transaction that completes its predecessor; enqueue a job without a chain';
  ELSIF TG_OP = 'INSERT' THEN
    RAISE EXCEPTION 'a job cannot be inserted as %, only as pending or blocked', NEW.status
      USING ERRCODE = 'SJ001', TABLE = TG_TABLE_NAME, COLUMN = 'status';
  ELSIF NEW.attempt < OLD.attempt THEN
    RAISE EXCEPTION 'job %: attempt cannot be lowered from % to %', OLD.id, OLD.attempt, NEW.attempt
      USING ERRCODE = 'SJ003', TABLE = TG_TABLE_NAME, COLUMN = 'attempt',
        HINT = 'attempt is the fence of every write of an attempt; to allow more attempts, raise max_attempts';
  ELSIF NEW.status = OLD.status THEN
    RAISE EXCEPTION 'job %: chain_completed_at cannot be cleared, its chain has ended and jobs wait for it',
      OLD.id USING ERRCODE = 'SJ003', TABLE = TG_TABLE_NAME, COLUMN = 'chain_completed_at';
  END IF;
  RAISE EXCEPTION 'job %: illegal transition from % to %', OLD.id, OLD.status, NEW.status
    USING ERRCODE = 'SJ001', TABLE = TG_TABLE_NAME, COLUMN = 'status',
      HINT = 'legal transitions are listed in ${p}job_transition';
END $$$$
--;
CREATE FUNCTION ${q}job_declared() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$$$
DECLARE
  declared ${q}job_type%ROWTYPE;
BEGIN
  SELECT * INTO declared FROM ${q}job_type WHERE type_name = NEW.type_name;
  NEW.queue := COALESCE(NEW.queue, declared.queue, 'default');
  NEW.priority := COALESCE(NEW.priority, declared.priority, 0);
  NEW.max_attempts := COALESCE(NEW.max_attempts, declared.max_attempts, 20);
  NEW.timeout := COALESCE(NEW.timeout, declared.timeout);
  NEW.rate_cost := COALESCE(NEW.rate_cost, declared.rate_cost);
  NEW.input_version := COALESCE(NEW.input_version, declared.input_version, 1);
  RETURN NEW;
END $$$$
--;
CREATE TRIGGER ${p}tr_job_declared BEFORE INSERT ON ${q}job FOR EACH ROW
  WHEN (NEW.queue IS NULL OR NEW.priority IS NULL OR NEW.max_attempts IS NULL OR NEW.input_version IS NULL)
  EXECUTE FUNCTION ${q}job_declared()
--;
CREATE FUNCTION ${q}job_deadline() RETURNS trigger LANGUAGE plpgsql AS $$$$
BEGIN
  NEW.expires_at := NEW.deadline;
  RETURN NEW;
END $$$$
--;
CREATE TRIGGER ${p}tr_job_deadline BEFORE INSERT OR UPDATE OF deadline, expires_at ON ${q}job FOR EACH ROW
  WHEN (NEW.deadline < COALESCE(NEW.expires_at, 'infinity')) EXECUTE FUNCTION ${q}job_deadline()
--;
CREATE TRIGGER ${p}tr_job_insert BEFORE INSERT ON ${q}job FOR EACH ROW
  WHEN (NEW.status NOT IN ('pending', 'blocked') OR NEW.status = 'blocked' AND NEW.open_blockers = 0
    OR pg_column_size(NEW.input) > 250 AND octet_length(NEW.input::text) > 4194304
    OR NEW.chain_index > 0 AND NOT has_column_privilege(${job_text}::regclass, 'status', 'UPDATE'))
  EXECUTE FUNCTION ${q}job_refuse()
--;
CREATE TRIGGER ${p}tr_job_input BEFORE UPDATE OF input ON ${q}job FOR EACH ROW
  WHEN (pg_column_size(NEW.input) > 250 AND octet_length(NEW.input::text) > 4194304) EXECUTE FUNCTION ${q}job_refuse()
--;
CREATE TRIGGER ${p}tr_job_transition BEFORE UPDATE ON ${q}job FOR EACH ROW
  WHEN (NEW.attempt < OLD.attempt OR OLD.status <> NEW.status AND NOT (
    OLD.status = 'pending' AND NEW.status IN ('running', 'completed', 'cancelled')
    OR OLD.status = 'running' AND NEW.status IN ('completed', 'pending', 'dead', 'cancelled')
    OR OLD.status = 'blocked' AND NEW.status IN ('pending', 'completed', 'dead', 'cancelled')
    OR OLD.status = 'dead' AND NEW.status IN ('pending', 'blocked'))
    OR OLD.has_waiters AND OLD.chain_completed_at IS NOT NULL AND NEW.chain_completed_at IS NULL
    AND COALESCE(OLD.chain_status, OLD.status) <> 'dead')
  EXECUTE FUNCTION ${q}job_refuse()
--;
CREATE FUNCTION ${q}job_stamp() RETURNS trigger LANGUAGE plpgsql AS $$$$
BEGIN
  NEW.changed_xid := pg_current_xact_id();
  RETURN NEW;
END $$$$
--;
CREATE FUNCTION ${q}job_changed() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$$$
BEGIN
  IF OLD.has_waiters AND NOT NEW.has_waiters AND EXISTS (
    SELECT FROM ${q}job_blocker b JOIN ${q}job w ON w.id = b.job_id AND w.status = 'blocked'
    WHERE b.blocked_by_chain_id = NEW.id AND NOT b.is_resolved AND (NEW.chain_completed_at IS NULL
      OR b.on_failure <> 'wait' OR COALESCE(NEW.chain_status, NEW.status) = 'completed')) THEN
    RAISE EXCEPTION 'job %: has_waiters cannot be cleared, jobs wait for its chain and are not unblocked yet', OLD.id
      USING ERRCODE = 'SJ003', TABLE = TG_TABLE_NAME, COLUMN = 'has_waiters',
        HINT = 'a worker clears it; to let a job run without its blockers, set that job''s status to pending';
  ELSIF (NEW.status, NEW.queue, NEW.fairness_key, NEW.type_name)
    = (OLD.status, OLD.queue, OLD.fairness_key, OLD.type_name) AND NEW.status <> 'pending' THEN
    -- Nothing but `has_waiters`, which is no change of the job to those who read its history.
    RETURN NEW;
  END IF;
  NEW.changed_xid := pg_current_xact_id();
  IF NEW.status = OLD.status THEN
    RETURN NEW;
  ELSIF NEW.status IN ('completed', 'dead', 'cancelled') THEN
    -- The chain ends with its last job.
    IF NEW.chain_index > 0 THEN
      UPDATE ${q}job SET chain_completed_at = now(), chain_status = NEW.status
        WHERE id = NEW.chain_id AND chain_completed_at IS NULL;
    ELSIF NOT EXISTS (SELECT FROM ${q}job j WHERE j.root_id = NEW.id) THEN
      NEW.chain_completed_at := COALESCE(NEW.chain_completed_at, now());
    END IF;
  ELSIF OLD.status IN ('blocked', 'dead') THEN
    IF NEW.status = 'pending' THEN
      -- It runs without what it still waited for.
      NEW.open_blockers := 0;
      UPDATE ${q}job_blocker SET is_resolved = true WHERE job_id = NEW.id AND NOT is_resolved;
    END IF;
    IF OLD.status = 'dead' THEN
      -- The chain is open again for the jobs that still wait for it; and the blockers of this job may have ended meanwhile.
      NEW.has_waiters := NEW.has_waiters OR EXISTS (
        SELECT FROM ${q}job_blocker b WHERE b.blocked_by_chain_id = NEW.id AND NOT b.is_resolved);
      NEW.chain_completed_at := NULL;
      IF NEW.chain_index > 0 THEN
        UPDATE ${q}job SET chain_completed_at = NULL, chain_status = NULL, has_waiters = has_waiters OR EXISTS (
          SELECT FROM ${q}job_blocker b WHERE b.blocked_by_chain_id = NEW.chain_id AND NOT b.is_resolved)
          WHERE id = NEW.chain_id;
      END IF;
      UPDATE ${q}job SET has_waiters = true WHERE NOT has_waiters AND id IN (
        SELECT b.blocked_by_chain_id FROM ${q}job_blocker b WHERE b.job_id = NEW.id AND NOT b.is_resolved);
      UPDATE ${q}dead_letter SET resolution = 'redriven', resolved_at = now(), changed_xid = pg_current_xact_id(),
        resolved_by = COALESCE(NULLIF(current_setting('sa_jobqueue.actor', true), ''), session_user)
        WHERE job_id = NEW.id AND resolution IS NULL;
    END IF;
  END IF;
  RETURN NEW;
END $$$$
--;
CREATE TRIGGER ${p}tr_job_stamp BEFORE UPDATE ON ${q}job FOR EACH ROW
  WHEN (NEW.changed_xid IS DISTINCT FROM pg_current_xact_id() AND (OLD.status <> NEW.status
    OR (OLD.queue, OLD.fairness_key, OLD.type_name) <> (NEW.queue, NEW.fairness_key, NEW.type_name)
    OR NEW.status = 'pending' AND (OLD.priority, OLD.scheduled_at) <> (NEW.priority, NEW.scheduled_at)
    OR OLD.has_waiters AND NOT NEW.has_waiters))
  EXECUTE FUNCTION ${q}job_changed()
--;
CREATE FUNCTION ${q}job_blocker_refuse() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$$$
DECLARE
  refused record;
BEGIN
  IF TG_OP = 'UPDATE' THEN
    RAISE EXCEPTION 'job %: a blocker can only be resolved, neither reopened nor moved to another job or chain', OLD.job_id
      USING ERRCODE = 'SJ003', TABLE = TG_TABLE_NAME, COLUMN = 'is_resolved';
  END IF;
  SELECT j.id, j.open_blockers, e.unresolved, j.changed_xid <> pg_current_xact_id() AS is_old INTO refused
    FROM ${q}job j CROSS JOIN LATERAL (
      SELECT count(*) FILTER (WHERE NOT b.is_resolved) AS unresolved FROM ${q}job_blocker b WHERE b.job_id = j.id) AS e
    WHERE j.id = ANY (ARRAY(SELECT DISTINCT a.job_id FROM added AS a))
      AND j.completed_at IS NULL AND (j.open_blockers <> e.unresolved OR j.changed_xid <> pg_current_xact_id()) LIMIT 1;
  IF NOT FOUND THEN
    RETURN NULL;
  ELSIF refused.is_old THEN
    RAISE EXCEPTION 'job %: its blockers are declared in the transaction that enqueues it, none can be added later',
      refused.id USING ERRCODE = 'SJ003', TABLE = TG_TABLE_NAME, COLUMN = 'job_id';
  END IF;
  RAISE EXCEPTION 'job %: has % unresolved blockers, and open_blockers is %',
      refused.id, refused.unresolved, refused.open_blockers
    USING ERRCODE = 'SJ003', TABLE = TG_TABLE_NAME, COLUMN = 'is_resolved',
      HINT = 'insert the job as blocked with as many open_blockers, and all of its blockers in one statement';
END $$$$
--;
CREATE TRIGGER ${p}tr_job_blocker_insert AFTER INSERT ON ${q}job_blocker REFERENCING NEW TABLE AS added
  FOR EACH STATEMENT EXECUTE FUNCTION ${q}job_blocker_refuse()
--;
CREATE TRIGGER ${p}tr_job_blocker_update BEFORE UPDATE ON ${q}job_blocker FOR EACH ROW
  WHEN (OLD.is_resolved AND NOT NEW.is_resolved
    OR (OLD.job_id, OLD.blocked_by_chain_id) <> (NEW.job_id, NEW.blocked_by_chain_id))
  EXECUTE FUNCTION ${q}job_blocker_refuse()
--;
CREATE FUNCTION ${q}job_deleted() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$$$
BEGIN
  DELETE FROM ${q}job_step WHERE job_id = ANY (ARRAY(SELECT id FROM gone));
  DELETE FROM ${q}job_attempt WHERE job_id = ANY (ARRAY(SELECT id FROM gone));
  -- A job that waits for the result of a deleted one goes on, and fails.
  UPDATE ${q}job SET scheduled_at = now() WHERE status = 'pending' AND scheduled_at > now() AND id = ANY (ARRAY(
    SELECT s.job_id FROM ${q}job_step AS s WHERE s.child_chain_id = ANY (ARRAY(SELECT id FROM gone))
      AND s.child_chain_id IS NOT NULL AND s.completed_at IS NULL));
  IF EXISTS (SELECT FROM gone WHERE status = 'dead') THEN
    UPDATE ${q}dead_letter SET resolution = 'dismissed', resolved_at = now(),
      resolved_by = COALESCE(NULLIF(current_setting('sa_jobqueue.actor', true), ''), session_user)
      WHERE job_id = ANY (ARRAY(SELECT id FROM gone WHERE status = 'dead')) AND resolution IS NULL;
  END IF;
  IF NOT EXISTS (SELECT FROM gone
      WHERE ordering_key IS NOT NULL AND COALESCE(completed_at > now() - interval '1 minute', true)) THEN
    RETURN NULL;
  END IF;
  UPDATE ${q}job SET changed_xid = pg_current_xact_id() WHERE status = 'pending' AND id = ANY (ARRAY(
    SELECT first.id
    FROM (SELECT DISTINCT ordering_key AS key FROM gone
      WHERE ordering_key IS NOT NULL AND COALESCE(completed_at > now() - interval '1 minute', true)) AS freed
    CROSS JOIN LATERAL (
      SELECT id FROM ${q}job
      WHERE ordering_key = freed.key AND ordering_key IS NOT NULL AND status IN ('blocked', 'pending')
      ORDER BY ordering_key, created_at, id LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED) AS first));
  PERFORM pg_notify('${channel}:unblock', '')
    WHERE current_setting('sa_jobqueue.notify', true) IS DISTINCT FROM 'off';
  RETURN NULL;
END $$$$
--;
CREATE TRIGGER ${p}tr_job_deleted AFTER DELETE ON ${q}job REFERENCING OLD TABLE AS gone
  FOR EACH STATEMENT EXECUTE FUNCTION ${q}job_deleted()
--;
CREATE FUNCTION ${q}job_unblock() RETURNS trigger LANGUAGE plpgsql AS $$$$
BEGIN
  PERFORM pg_notify('${channel}:unblock', '')
    WHERE current_setting('sa_jobqueue.notify', true) IS DISTINCT FROM 'off';
  RETURN NEW;
END $$$$
--;
CREATE TRIGGER ${p}tr_job_unblock BEFORE UPDATE ON ${q}job FOR EACH ROW
  WHEN (NEW.completed_by IS NULL AND NEW.completed_at IS NOT NULL AND OLD.completed_at IS NULL
      AND (NEW.has_waiters OR NEW.chain_index > 0 OR NEW.ordering_key IS NOT NULL)
    OR NEW.has_waiters AND NOT OLD.has_waiters AND NEW.chain_completed_at IS NOT NULL)
  EXECUTE FUNCTION ${q}job_unblock()
--;
CREATE FUNCTION ${q}job_made_due() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$$$
BEGIN
  PERFORM ${q}job_notify_due(concat_ws(chr(31), NEW.queue, NULLIF(NEW.fairness_key, '')));
  RETURN NULL;
END $$$$
--;
-- Deferred to the commit, because a worker that becomes idle between the statement and the commit is to be notified as well.
-- A worker that returns a running job looks itself; a client that inserts many rows looks once for all of them. A job that a
-- trigger only stamps has been notified by `unblock`: PostgreSQL does not alter a table with deferred triggers to fire.
CREATE CONSTRAINT TRIGGER ${p}tr_job_made_due AFTER UPDATE ON ${q}job DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
  WHEN (NEW.status = 'pending' AND OLD.status <> 'running' AND NEW.changed_xid IS DISTINCT FROM OLD.changed_xid
    AND (pg_trigger_depth() = 0 OR (OLD.status, OLD.queue, OLD.fairness_key, OLD.priority, OLD.scheduled_at)
      IS DISTINCT FROM (NEW.status, NEW.queue, NEW.fairness_key, NEW.priority, NEW.scheduled_at)))
  EXECUTE FUNCTION ${q}job_made_due()
--;
CREATE CONSTRAINT TRIGGER ${p}tr_job_enqueued AFTER INSERT ON ${q}job DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
  WHEN (pg_trigger_depth() > 0) EXECUTE FUNCTION ${q}job_made_due()
--;
CREATE VIEW ${q}job_transition (from_status, to_status) AS
  SELECT f::${q}job_status, t::${q}job_status FROM (VALUES
    (NULL, 'blocked'), (NULL, 'pending'),
    ('blocked', 'pending'), ('blocked', 'completed'), ('blocked', 'dead'), ('blocked', 'cancelled'),
    ('pending', 'running'), ('pending', 'completed'), ('pending', 'cancelled'),
    ('running', 'completed'), ('running', 'pending'), ('running', 'dead'), ('running', 'cancelled'),
    ('dead', 'pending'), ('dead', 'blocked')) AS transition (f, t)
--;
CREATE FUNCTION ${q}job_idle_lock(queue_key text) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$$$
  SELECT hashtextextended('${channel}:idle:' || (CASE WHEN queue_key = '' THEN -1
    ELSE hashtextextended(split_part(queue_key, chr(31), 1), 0) & 15 END)::text, 0)
$$$$
--;
CREATE FUNCTION ${q}job_notify_due(queue_key text) RETURNS void LANGUAGE plpgsql AS $$$$
DECLARE
  idle bigint := ${q}job_idle_lock(queue_key);
BEGIN
  -- One expression: a statement that is cancelled between the two calls would keep a lock of the session.
  PERFORM CASE WHEN pg_try_advisory_lock(idle) THEN pg_advisory_unlock(idle)
    ELSE pg_notify('${channel}:due', queue_key) IS NULL END
    WHERE current_setting('sa_jobqueue.notify', true) IS DISTINCT FROM 'off';
END $$$$
--;
CREATE FUNCTION ${q}job_uuid7() RETURNS uuid LANGUAGE sql VOLATILE PARALLEL SAFE AS $$$$
  SELECT encode(set_bit(set_bit(overlay(uuid_send(gen_random_uuid())
    PLACING substring(int8send((extract(epoch FROM clock_timestamp()) * 1000)::bigint) FROM 3) FROM 1 FOR 6),
    52, 1), 53, 1), 'hex')::uuid
$$$$
--;
CREATE FUNCTION ${q}job_send_event(event text, payload jsonb DEFAULT 'null', keep interval DEFAULT '30 days')
RETURNS boolean LANGUAGE plpgsql SET search_path FROM CURRENT AS $$$$
#variable_conflict use_column
BEGIN
  IF COALESCE(length(${p}job_send_event.event), 0) NOT BETWEEN 1 AND 200 THEN
    RAISE EXCEPTION 'event: must be 1 to 200 characters, got %', COALESCE(length(${p}job_send_event.event), 0)
      USING ERRCODE = 'SJ002', COLUMN = 'event';
  ELSIF keep IS NULL OR keep <= '0'::interval OR keep > '36500 days'::interval THEN
    RAISE EXCEPTION 'keep: must be above zero and at most 36500 days, got %', keep USING ERRCODE = 'SJ002', COLUMN = 'keep';
  ELSIF octet_length(${p}job_send_event.payload::text) > 1048576 THEN
    RAISE EXCEPTION 'payload: must be at most 1048576 bytes of JSON text, got %',
      octet_length(${p}job_send_event.payload::text)
      USING ERRCODE = 'SJ002', COLUMN = 'payload';
  ELSIF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
    RAISE EXCEPTION 'an event needs a READ COMMITTED transaction, this one is %: it would not see a job that began to wait',
      upper(current_setting('transaction_isolation')) USING ERRCODE = 'SJ003';
  END IF;
  -- Against attempts that begin to wait: they have committed before this, and are seen below, or they wait for our commit.
  PERFORM pg_advisory_xact_lock(hashtextextended('${channel}:event:' || ${p}job_send_event.event, 0));
  INSERT INTO ${q}job_event AS e (name, payload, sent_at, sent_by, expires_at)
    VALUES (${p}job_send_event.event, COALESCE(${p}job_send_event.payload, 'null'), clock_timestamp(),
      COALESCE(NULLIF(current_setting('sa_jobqueue.actor', true), ''), SESSION_USER), now() + keep)
    ON CONFLICT (name) DO UPDATE SET payload = EXCLUDED.payload, sent_at = EXCLUDED.sent_at, sent_by = EXCLUDED.sent_by,
      expires_at = EXCLUDED.expires_at WHERE e.expires_at <= now() AND NOT EXISTS (
        SELECT FROM ${q}job_step AS s JOIN ${q}job AS j ON j.id = s.job_id
        WHERE s.event = e.name AND s.event IS NOT NULL AND s.completed_at IS NULL AND s.started_at <= e.sent_at
          AND j.completed_at IS NULL);
  IF NOT FOUND THEN
    RETURN false;
  END IF;
  UPDATE ${q}job SET scheduled_at = now() WHERE status = 'pending' AND scheduled_at > now() AND id = ANY (ARRAY(
    SELECT s.job_id FROM ${q}job_step AS s
    WHERE s.event = ${p}job_send_event.event AND s.event IS NOT NULL AND s.completed_at IS NULL));
  RETURN true;
END $$$$
--;
CREATE VIEW ${q}job_chain AS
  SELECT root.id, root.queue, root.type_name, root.input, root.input_version, last.status,
    CASE WHEN last.status = 'completed' THEN last.output END AS output,
    CASE WHEN last.status IN ('dead', 'cancelled') THEN last.last_error END AS error,
    root.created_at, root.chain_completed_at AS completed_at, last.chain_index + 1 AS length, last.id AS last_job_id,
    last.type_name AS last_type_name, root.deduplication_key, root.fairness_key
  FROM ${q}job AS root JOIN ${q}job AS last ON last.id = COALESCE(
    (SELECT j.id FROM ${q}job AS j WHERE j.root_id = root.id ORDER BY j.chain_index DESC LIMIT 1), root.id)
  WHERE root.chain_index = 0
--;
CREATE VIEW ${q}job_queue AS
  SELECT id, queue, type_name, input, status, scheduled_at, fairness_key FROM ${q}job
--;
CREATE FUNCTION ${q}job_queue_insert() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$$$
BEGIN
  IF COALESCE(NEW.type_name, '') = '' THEN
    RAISE EXCEPTION 'type_name: a job needs the name of its type' USING ERRCODE = 'SJ002', COLUMN = 'type_name';
  ELSIF NEW.type_name !~ '^[A-Za-z0-9_][A-Za-z0-9_.:/-]{0,99}$$' THEN
    RAISE EXCEPTION 'type_name: must be 1 to 100 of A-Z a-z 0-9 _ . : / -, and start with one of A-Z a-z 0-9 _, got %',
      quote_literal(left(NEW.type_name, 100)) USING ERRCODE = 'SJ002', COLUMN = 'type_name';
  ELSIF octet_length(NEW.input::text) > 1048576 THEN
    RAISE EXCEPTION 'input: must be at most 1048576 bytes of JSON text, got %', octet_length(NEW.input::text)
      USING ERRCODE = 'SJ002', COLUMN = 'input', HINT = 'store the data elsewhere and enqueue a reference to it';
  END IF;
  IF COALESCE(NEW.status, 'pending') <> 'pending' THEN
    RAISE EXCEPTION 'status: a job is enqueued as pending, not as %', NEW.status USING ERRCODE = 'SJ001', COLUMN = 'status';
  END IF;
  NEW.id := COALESCE(NEW.id, ${q}job_uuid7()::$id);
  NEW.fairness_key := COALESCE(NEW.fairness_key, '');
  IF NEW.queue !~ '^[A-Za-z0-9_][A-Za-z0-9_.:/-]{0,99}$$' THEN
    RAISE EXCEPTION 'queue: must be 1 to 100 of A-Z a-z 0-9 _ . : / -, and start with one of A-Z a-z 0-9 _, got %',
      quote_literal(left(NEW.queue, 100)) USING ERRCODE = 'SJ002', COLUMN = 'queue';
  ELSIF length(NEW.fairness_key) > 100 THEN
    RAISE EXCEPTION 'fairness_key: must be at most 100 characters, got %', length(NEW.fairness_key)
      USING ERRCODE = 'SJ002', COLUMN = 'fairness_key';
  END IF;
  NEW.input := COALESCE(NEW.input, 'null'::jsonb);
  IF (CASE WHEN jsonb_typeof(NEW.input) = 'object' THEN NEW.input ? 'sa_jobqueue.codec'
    AND NEW.input - 'data' - 'sa_jobqueue.codec' = '{}' ELSE false END) THEN
    -- Data that looks encoded names no codec: who writes through the view does not choose how it is decoded.
    NEW.input := jsonb_build_object('sa_jobqueue.codec', NULL, 'data', NEW.input);
  END IF;
  NEW.status := 'pending';
  NEW.scheduled_at := GREATEST(NEW.scheduled_at, now());
  INSERT INTO ${q}job (id, queue, fairness_key, type_name, chain_id, chain_type_name, input, scheduled_at)
    VALUES (NEW.id, NEW.queue, NEW.fairness_key, NEW.type_name, NEW.id, NEW.type_name, NEW.input, NEW.scheduled_at)
    RETURNING queue INTO NEW.queue;
  RETURN NEW;
END $$$$
--;
CREATE TRIGGER ${p}tr_job_queue_insert INSTEAD OF INSERT ON ${q}job_queue FOR EACH ROW
  EXECUTE FUNCTION ${q}job_queue_insert()
--;
CREATE FUNCTION ${q}job_queue_update() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$$$
DECLARE
  held ${q}job%ROWTYPE;
  spent integer;
  involved $key[] := ARRAY[OLD.id];
BEGIN
  IF (NEW.id, NEW.queue, NEW.fairness_key, NEW.type_name)
      IS DISTINCT FROM (OLD.id, OLD.queue, OLD.fairness_key, OLD.type_name)
    OR NEW.input IS DISTINCT FROM OLD.input THEN
    RAISE EXCEPTION 'job %: only status and scheduled_at can be changed through this view', OLD.id USING ERRCODE = 'SJ003';
  END IF;
  -- A change of status is left unstamped (`changed_xid`): the trigger on the table then writes what follows from it.
  -- What the view showed may be history by now: decide on the row as it is, and hold it, its chain's root, and for a
  -- redrive the roots of what it still waits for. In the one order of locks: roots first, each kind by id.
  IF NEW.status IS DISTINCT FROM OLD.status THEN
    involved := involved || ARRAY(SELECT chain_id FROM ${q}job WHERE id = OLD.id);
  END IF;
  IF NEW.status = 'pending' AND OLD.status = 'dead' THEN
    involved := involved || ARRAY(SELECT blocked_by_chain_id FROM ${q}job_blocker WHERE job_id = OLD.id AND NOT is_resolved);
  END IF;
  PERFORM FROM ${q}job WHERE id = ANY (involved) ORDER BY root_id IS NOT NULL, id FOR NO KEY UPDATE;
  SELECT * INTO held FROM ${q}job WHERE id = OLD.id;
  IF NOT FOUND THEN
    RETURN NULL;
  END IF;
  IF NEW.status = OLD.status AND NEW.scheduled_at = OLD.scheduled_at THEN
    RETURN NEW;
  ELSIF NEW.status = OLD.status OR (NEW.status = 'pending' AND held.status = 'pending') THEN
    IF held.status NOT IN ('pending', 'blocked') THEN
      RAISE EXCEPTION 'job %: is %, only a pending or blocked job can be rescheduled', held.id, held.status
        USING ERRCODE = 'SJ001', COLUMN = 'scheduled_at';
    END IF;
    NEW.scheduled_at := GREATEST(NEW.scheduled_at, now());
    UPDATE ${q}job SET scheduled_at = NEW.scheduled_at WHERE id = held.id;
    NEW.status := held.status;
  ELSIF NEW.status = 'cancelled' AND held.status IN ('blocked', 'pending', 'running') THEN
    IF held.status = 'running' THEN
      INSERT INTO ${q}job_attempt (job_id, attempt, worker_id, started_at, outcome)
        VALUES (held.id, held.attempt, held.leased_by, held.started_at, 'cancelled') ON CONFLICT DO NOTHING;
      PERFORM pg_notify('${channel}:lost', held.id::text)
        WHERE current_setting('sa_jobqueue.notify', true) IS DISTINCT FROM 'off';
    END IF;
    UPDATE ${q}job SET status = 'cancelled', completed_at = now(), leased_by = NULL, leased_until = NULL,
      changed_xid = '0' WHERE id = held.id;
  ELSIF NEW.status = 'pending' AND held.status = 'dead' THEN
    -- Attempts allowed since the death before this one, less those given back, are the job's new budget.
    SELECT held.max_attempts - COALESCE(max(d.attempts), 0) INTO spent
      FROM ${q}dead_letter d WHERE d.job_id = held.id AND d.attempts < held.attempt;
    SELECT spent - count(*) INTO spent FROM ${q}job_attempt a
      WHERE a.job_id = held.id AND a.attempt > held.max_attempts - spent AND a.outcome IN ('snoozed', 'released');
    IF NEW.scheduled_at = OLD.scheduled_at THEN
      NEW.scheduled_at := now();
    END IF;
    NEW.scheduled_at := GREATEST(NEW.scheduled_at, now());
    IF held.open_blockers > 0 THEN
      NEW.status := 'blocked';
    END IF;
    UPDATE ${q}job SET status = NEW.status, scheduled_at = NEW.scheduled_at, completed_at = NULL, completed_by = NULL,
      max_attempts = held.attempt + GREATEST(spent, 1), changed_xid = '0' WHERE id = held.id;
  ELSE
    RAISE EXCEPTION 'job %: is %, which cannot become %', held.id, held.status, NEW.status
      USING ERRCODE = 'SJ001', COLUMN = 'status', HINT = 'cancel what has not ended; redrive what is dead';
  END IF;
  RETURN NEW;
END $$$$
--;
CREATE TRIGGER ${p}tr_job_queue_update INSTEAD OF UPDATE ON ${q}job_queue FOR EACH ROW
  EXECUTE FUNCTION ${q}job_queue_update()
--;
CREATE TRIGGER ${p}tr_job_queue_delete INSTEAD OF DELETE ON ${q}job_queue FOR EACH ROW
  EXECUTE FUNCTION ${q}job_refuse()
--;
CREATE TRIGGER ${p}tr_dead_letter_stamp BEFORE UPDATE ON ${q}dead_letter FOR EACH ROW
  WHEN (NEW.changed_xid IS DISTINCT FROM pg_current_xact_id()) EXECUTE FUNCTION ${q}job_stamp()"""

BUILD = hashlib.sha256(f"{_TABLES}{ROUTINES}".encode()).hexdigest()[:8]
"""Tells the tables of this version apart from those of a development build with the same number."""

_STAMP = f"COMMENT ON TABLE ${{q}}job IS 'sa_jobqueue version={VERSION} build={BUILD}'"

DROP_VIEWS = "DROP VIEW IF EXISTS ${q}job_queue, ${q}job_chain, ${q}job_transition"

# IF EXISTS, and functions without their arguments: a development build may have had others.
_DROP_TABLES = """\
DROP TABLE IF EXISTS ${q}job_audit, ${q}threshold, ${q}quarantine, ${q}rate_state, ${q}schedule, ${q}job_type, ${q}queue,
  ${q}worker, ${q}dead_letter, ${q}job_minute, ${q}job_event, ${q}job_step, ${q}job_attempt, ${q}job_blocker, ${q}job"""

DROP_FUNCTIONS = """\
DROP FUNCTION IF EXISTS ${q}job_send_event, ${q}job_queue_update, ${q}job_queue_insert, ${q}job_uuid7, ${q}job_made_due,
  ${q}job_notify_due, ${q}job_idle_lock, ${q}job_unblock, ${q}job_deleted, ${q}job_blocker_refuse, ${q}job_changed,
  ${q}job_stamp, ${q}job_deadline, ${q}job_declared, ${q}job_refuse"""

_DROP_TYPES = """\
DROP TYPE IF EXISTS ${q}dead_letter_resolution, ${q}dead_letter_reason, ${q}job_attempt_outcome,
  ${q}job_blocker_on_failure, ${q}job_status"""

# Kept if it contains anything else, or if another role owns it.
_DROP_SCHEMA = """\
DO $$$$ BEGIN
  DROP SCHEMA $schema RESTRICT;
EXCEPTION WHEN dependent_objects_still_exist OR insufficient_privilege THEN NULL;
END $$$$"""

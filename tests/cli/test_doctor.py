"""`sa-jobqueue doctor`: each check passes on a sound installation, and names what to change on a broken one."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from importlib import metadata
from pathlib import Path
from uuid import uuid4

import pytest
from sqlalchemy import Engine, make_url, text

from sa_jobqueue import Job
from sa_jobqueue.cli import doctor
from sa_jobqueue.cli.doctor import Check, Status, examine
from sa_jobqueue.db.connections import OWN_CONNECTIONS
from sa_jobqueue.testing.servers import PostgresServer
from tests.contracts.packages import ROOT
from tests.fixtures.commands import Run, document, run
from tests.fixtures.poolers import MakePooler
from tests.fixtures.transactions import write
from tests.fixtures.workers import wait_until

__all__ = ["run"]  # a fixture

OF_TESTS = {"fsync", "full_page_writes", "autovacuum", "synchronous_commit"}
"""Settings that the tests' servers have on purpose: they are fast, and may lose everything."""


def checks(url: str, **options: object) -> dict[str, Check]:
    return {check.name: check for check in examine(make_url(url), Job, **options)}  # type: ignore[arg-type]


def configure(engine: Engine, **settings: str) -> None:
    """Give all new sessions of a database some settings."""
    with engine.begin() as connection:
        for name, value in settings.items():
            connection.execute(text(f'ALTER DATABASE "{engine.url.database}" SET {name} = {value}'))


def test_doctor_passes_on_a_sound_installation(run: Run) -> None:
    report = document(run("doctor", "--json", status=1))  # the tests' servers are not durable
    by_name = {check["name"]: check for check in report["checks"]}
    expected = ["versions", "server", "settings", "clock", "schema", "privileges", "pooler", "connections", "storage"]
    assert list(by_name) == expected
    wrong = {name for name, check in by_name.items() if check["status"] != "ok"}
    assert wrong == {"settings", "privileges"}  # and their user is a superuser
    assert {setting.partition(" = ")[0] for setting in by_name["settings"]["found"].split(", ")} <= OF_TESTS
    assert all(check["advice"] for check in by_name.values() if check["name"] in wrong)
    output = run("doctor", status=1).stdout
    for name in by_name:
        assert f" {name}: " in output
    assert "fsync: a crash of the server can lose and corrupt data: set fsync = on" in output


HARMFUL = {
    "synchronous_commit=off": "loses the jobs",
    "default_transaction_read_only=on": "turn it off",
    "idle_in_transaction_session_timeout='5s'": "set it to 0",
    "track_counts=off": "set track_counts = on",
    "statement_timeout='30s'": "set it to 0 for the worker's role",
    "lock_timeout='2s'": "wait for a lock",
    "idle_session_timeout='10s'": "pool_pre_ping=True",
    "default_transaction_isolation=serializable": "set it to 'read committed'",
    "session_replication_role=replica": "set it to origin",
    "client_encoding=SQL_ASCII": "set client_encoding to UTF8",
    "datestyle='German'": "set datestyle to ISO",
    "intervalstyle=iso_8601": "set intervalstyle to postgres",
    "array_nulls=off": "set array_nulls to on",
    "enable_indexscan=off": "set enable_indexscan to on",
}


def test_doctor_reports_each_harmful_database_setting(engine: Engine, database_url: str) -> None:
    settings = dict(setting.split("=", 1) for setting in HARMFUL)
    before = checks(database_url)["settings"].found
    assert not [name for name in settings if f"{name} =" in before and name not in OF_TESTS]
    configure(engine, **settings)
    settings_check = checks(database_url)["settings"]
    assert settings_check.status is not Status.OK
    for name, value in settings.items():
        assert f"{name} = {value.strip(chr(39))}" in settings_check.found
    for advice in HARMFUL.values():
        assert advice in settings_check.advice


def test_doctor_reports_an_unreachable_database(run: Run) -> None:
    result = document(run("doctor", "--json", status=1, url="postgresql://nobody:secret@127.0.0.1:1/none"))
    assert [check["name"] for check in result["checks"]] == ["versions", "connection"]
    assert "cannot use" in result["checks"][1]["found"]
    assert "secret" not in str(result)
    assert "pg_hba.conf" in result["checks"][1]["advice"]


def test_doctor_reports_missing_or_outdated_tables(engine: Engine, database_url: str) -> None:
    write(engine, "COMMENT ON TABLE job IS 'sa_jobqueue version=0'")
    checks_by_name = checks(database_url)
    assert checks_by_name["schema"].status is Status.ERROR
    assert "alembic upgrade head" in checks_by_name["schema"].advice
    assert not {"privileges", "storage"} & set(checks_by_name)
    write(engine, "ALTER TABLE job RENAME TO mail_job")
    schema = checks(database_url)["schema"]
    assert schema.found == "table job does not exist; public.mail_job is the table of another model"
    assert "--app" in schema.advice
    write(engine, "COMMENT ON TABLE mail_job IS NULL")
    schema = checks(database_url)["schema"]
    assert schema.found == "table job does not exist"
    assert "alembic upgrade head" in schema.advice
    assert "target_metadata" in schema.advice


def test_tables_outside_the_search_path_are_found(engine: Engine, database_url: str) -> None:
    configure(engine, search_path="elsewhere")
    schema_check = checks(database_url)["schema"]
    assert schema_check.status is Status.ERROR
    assert schema_check.found == "table job is in schema public, and not in search_path = elsewhere"
    assert "queue_schema = 'public'" in schema_check.advice
    assert f'ALTER ROLE "{engine.url.username}" SET search_path = public' in schema_check.advice


@pytest.mark.slow
def test_dropped_relations_and_disabled_triggers_are_found(engine: Engine, database_url: str) -> None:
    write(engine, "ALTER TABLE job DISABLE TRIGGER USER")
    check = checks(database_url)["schema"]
    assert check.status is Status.ERROR
    assert check.found.startswith("triggers of job are disabled")
    write(engine, text(check.advice))
    assert checks(database_url)["schema"].status is Status.OK
    write(engine, "DROP INDEX ix_job_claim")
    storage = checks(database_url)["storage"]
    assert storage.status is Status.WARNING
    assert storage.found == 'index "ix_job_claim" is missing'
    assert storage.advice.startswith("create the missing indexes again")
    write(engine, "DROP VIEW job_queue")
    check = checks(database_url)["privileges"]
    assert check.status is Status.ERROR
    assert check.found == 'could not be checked: relation "job_queue" does not exist'


APP = """
from sa_jobqueue import JobQueue
{0}
jobs = JobQueue()
{1}
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "name", "status", "expected_text", "advice"),
    [
        (
            APP.format("", "@jobs.handler('send', queue='mail')\ndef send(n: int) -> None: ..."),
            "jobs",
            "ok",
            "handlers send; queues mail",
            "",
        ),
        (APP.format("", ""), "jobs", "warning", "has no handlers", "--import"),
        (APP.format("", ""), "queue", "error", "has no attribute 'queue'", "--app MODULE:ATTRIBUTE"),
        (APP.format("import not_installed", ""), "jobs", "error", "No module named 'not_installed'", "python -c 'import "),
        (
            APP.format("raise ValueError('cannot use postgresql://shop:secret@db/shop')", ""),
            *("jobs", "error", "ValueError: cannot use postgresql://shop:***@db/shop (", "environment variables"),
        ),
        ("jobs = 7", "jobs", "error", "is of type int, not a JobQueue", "--app"),
    ],
)
def test_an_application_that_cannot_be_used_is_found(
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    source: str,
    name: str,
    status: str,
    expected_text: str,
    advice: str,
) -> None:
    module = f"app_{uuid4().hex}"
    (tmp_path / f"{module}.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    result = document(run("doctor", "--json", "--app", f"{module}:{name}", status=1))  # the tests' servers are not durable
    first, *other_checks = result["checks"]
    assert (first["name"], first["status"]) == ("application", status)
    assert expected_text in first["found"]
    assert advice in first["advice"]
    assert bool(first["advice"]) == (status != "ok")
    assert "secret" not in str(result)
    assert "pooler" in {check["name"] for check in other_checks}
    assert ("schema" in {check["name"] for check in other_checks}) == (status != "error")


def test_an_unknown_module_is_found(run: Run) -> None:
    result = document(run("doctor", "--json", "--app", "no_such_shop.jobs:jobs", status=1))
    assert result["checks"][0]["status"] == "error"
    assert "module 'no_such_shop.jobs' not found" in result["checks"][0]["found"]


@pytest.mark.slow
def test_too_few_connections_are_found(engine: Engine, database_url: str) -> None:
    assert checks(database_url)["connections"].status is Status.OK
    assert "connections" not in checks(database_url, role="producer")
    user = f"few_{uuid4().hex[:12]}"
    write(engine, f"CREATE ROLE {user} LOGIN PASSWORD 'few' CONNECTION LIMIT 22")
    url = make_url(database_url).set(username=user, password="few").render_as_string(hide_password=False)
    try:
        connections_check = checks(url)["connections"]
        assert connections_check.status is Status.WARNING
        sentence = f"the CONNECTION LIMIT of role {user} allows 22, of which 0 are in use"
        # The server may not have ended yet the session that the command before has closed.
        wait_until(lambda: checks(url)["connections"].found.startswith(sentence), description=sentence)
        assert "up to 23" in connections_check.found
        write(engine, f"ALTER ROLE {user} CONNECTION LIMIT 23")
        wait_until(lambda: checks(url)["connections"].status is Status.OK, description="there is room")
    finally:
        write(engine, f"DROP ROLE {user}")


def test_the_guide_states_how_many_connections_a_worker_opens() -> None:
    guide = (ROOT / "docs/guides/workers-in-production.md").read_text(encoding="utf-8")
    assert f"at most `{OWN_CONNECTIONS} + concurrency`" in guide


@pytest.mark.slow
def test_doctor_reports_missing_privileges(engine: Engine, database_url: str, run: Run) -> None:
    prefix = f"t{engine.url.database}"[:40].lower()
    run("grants", "--roles", prefix, "--apply")
    user = f"{prefix}_app"
    write(engine, f'CREATE ROLE "{user}" LOGIN PASSWORD \'app\' IN ROLE "{prefix}_producer"')
    url = make_url(database_url).set(username=user, password="app").render_as_string(hide_password=False)
    try:
        assert checks(url, role="producer")["privileges"].status is Status.OK
        check = checks(url)["privileges"]
        assert check.status is Status.ERROR
        assert "UPDATE, DELETE on job" in check.found
        assert f'GRANT jobqueue_worker TO "{user}"' in check.advice
        with engine.begin() as connection:  # of one column
            connection.execute(text(f'REVOKE UPDATE (has_waiters) ON job FROM "{prefix}_producer"'))
        assert checks(url, role="producer")["privileges"].found == f"role {user} lacks UPDATE on job"
        write(engine, f'REVOKE USAGE ON SCHEMA public FROM PUBLIC, "{prefix}_producer"')
        check = checks(url)["schema"]
        assert check.status is Status.ERROR
        assert check.found == f"role {user} has no USAGE on schema public, which has the tables"
        assert f'GRANT jobqueue_worker TO "{user}"' in check.advice
    finally:
        with engine.begin() as connection:
            for role in (user, *(f"{prefix}_{member}" for member in ("producer", "worker", "observer", "operator"))):
                connection.execute(text(f'DROP OWNED BY "{role}"; DROP ROLE "{role}"'))


def test_doctor_reports_a_changed_storage_parameter(engine: Engine, database_url: str) -> None:
    write(engine, "ALTER TABLE job RESET (autovacuum_vacuum_scale_factor)")
    storage_check = checks(database_url)["storage"]
    assert storage_check.status is Status.WARNING
    write(engine, text(storage_check.advice))
    assert checks(database_url)["storage"].status is Status.OK


def test_doctor_reports_a_connection_pooler(database_url: str, pooler: MakePooler) -> None:
    url = pooler().url
    checks_by_name = checks(url)
    assert checks_by_name["pooler"].status is Status.WARNING
    assert "--listen-url" in checks_by_name["pooler"].advice
    assert "max_client_conn" in checks_by_name["connections"].found
    assert checks(url, listen_url=make_url(database_url))["pooler"].status is Status.OK
    refused = checks(url, listen_url=make_url(url))["pooler"]
    assert refused.status is Status.ERROR
    assert "the PostgreSQL server itself" in refused.advice


def test_a_listen_url_that_receives_nothing_is_found(
    database_url: str, newest_server: PostgresServer, make_database: Callable[[PostgresServer], str]
) -> None:
    unreachable = checks(database_url, listen_url=make_url("postgresql+psycopg://a:secret@127.0.0.1:1/b"))["pooler"]
    assert unreachable.status is Status.ERROR
    assert "--listen-url: cannot use" in unreachable.found
    assert "secret" not in unreachable.found
    pooler_check = checks(database_url, listen_url=make_url(make_database(newest_server)))["pooler"]
    assert pooler_check.status is Status.ERROR
    assert "leads to another database" in pooler_check.found


def test_other_modes_of_a_pooler_are_found(pooler: MakePooler, run: Run) -> None:
    sessions = document(run("doctor", "--json", status=1, url=pooler(pool_mode="session").url))["checks"]
    assert {check["name"]: check["status"] for check in sessions}["pooler"] == Status.WARNING
    *_, last = document(run("doctor", "--json", status=1, url=pooler(pool_mode="statement").url))["checks"]
    assert (last["name"], last["status"]) == ("connection", Status.ERROR)
    assert "statement pooling mode" in last["found"]
    assert "transaction or session mode" in last["advice"]


def test_a_check_that_the_database_refuses_is_an_error(engine: Engine) -> None:
    def check() -> Check:
        with engine.connect() as connection:
            connection.execute(text("SELECT secret FROM no_such_table"))
        raise AssertionError

    tried_check = doctor._tried("storage", check)
    assert (tried_check.name, tried_check.status) == ("storage", Status.ERROR)
    assert tried_check.found == 'could not be checked: relation "no_such_table" does not exist'
    assert tried_check.advice


@pytest.mark.parametrize("ahead", [timedelta(minutes=2), timedelta(minutes=-2)])
def test_doctor_reports_a_wrong_clock(database_url: str, ahead: timedelta) -> None:
    clock_check = checks(database_url, now=lambda: datetime.now(UTC) + ahead)["clock"]
    assert clock_check.status is Status.WARNING
    assert f"120 s {'ahead of' if ahead > timedelta(0) else 'behind'} the server's" in clock_check.found
    assert "NTP" in clock_check.advice


def test_doctor_does_not_mistake_a_slow_answer_for_a_wrong_clock(database_url: str) -> None:
    times = itertools.count()
    checks_by_name = checks(database_url, now=lambda: datetime.now(UTC) + timedelta(seconds=20 * next(times) - 10))
    assert checks_by_name["clock"].status is Status.OK


def fake_version(monkeypatch: pytest.MonkeyPatch, **versions: str) -> None:
    real = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: versions.get(name) or real(name))


@pytest.mark.parametrize("version", ["2.0.35", "2.2.0b1", "1.4"])
def test_doctor_reports_an_unsupported_version(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    assert doctor.versions().status is Status.OK
    fake_version(monkeypatch, sqlalchemy=version)
    versions_check = doctor.versions()
    assert versions_check.status is Status.ERROR
    assert versions_check.found.startswith(f"sqlalchemy {version} is not ")
    assert versions_check.advice.startswith("python -m pip install 'sqlalchemy")


def test_doctor_reports_a_missing_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "DISTRIBUTION", "sa-jobqueue-is-not-installed")
    assert doctor.versions().status is Status.WARNING


def test_doctor_reports_a_non_utf8_encoding_a_standby_and_an_old_server() -> None:
    old = {"server_encoding": "LATIN1", "in_hot_standby": "on", "server_version": "14.9", "server_version_num": "140009"}
    check_by_name = {check.name: check for check in doctor.server(old)}
    assert {check_by_name[name].status for name in ("settings", "server")} == {Status.ERROR}
    assert check_by_name["settings"].found == "server_encoding = LATIN1, in_hot_standby = on"
    assert "target_session_attrs=read-write" in check_by_name["settings"].advice
    assert "PostgreSQL 15" in check_by_name["server"].advice

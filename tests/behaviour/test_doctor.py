"""`sa-jobqueue doctor`: each check passes on a sound installation, and names what to change on a broken one."""

from __future__ import annotations

import itertools
import platform
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from importlib import metadata

import pytest
from sqlalchemy import Engine, create_engine, make_url, text

from sa_jobqueue import Job
from sa_jobqueue.cli import _doctor
from sa_jobqueue.cli._doctor import Check, Status, examine
from sa_jobqueue.testing.databases import drop_database
from sa_jobqueue.testing.servers import PostgresServer
from tests.behaviour.test_cli import Run, document, run
from tests.fixtures.poolers import MakePooler

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


def test_a_sound_installation_passes(run: Run, engine: Engine) -> None:
    found = document(run("doctor", "--json", status=1))  # the tests' servers are not durable
    by_name = {check["name"]: check for check in found["checks"]}
    expected = [
        "versions",
        "server",
        "primary",
        "encoding",
        "settings",
        "clock",
        "schema",
        "privileges",
        "pooler",
        "sessions",
    ]
    assert list(by_name) == [*expected, "planner", "storage"]
    wrong = {name for name, check in by_name.items() if check["status"] != "ok"}
    assert wrong == {"settings", "privileges"}  # and their user is a superuser
    assert {one.partition(" = ")[0] for one in by_name["settings"]["found"].split(", ")} <= OF_TESTS
    assert all(check["advice"] for check in by_name.values() if check["name"] in wrong)
    shown = run("doctor", status=1).stdout
    for name in by_name:
        assert f" {name}: " in shown
    assert "fsync: a crash of the server can lose and corrupt data: set fsync = on" in shown


@pytest.mark.parametrize(
    ("name", "check", "advice"),
    [
        ("synchronous_commit=off", "settings", "loses the jobs"),
        ("default_transaction_read_only=on", "settings", "turn it off"),
        ("idle_in_transaction_session_timeout='5s'", "settings", "set it to 0"),
        ("track_counts=off", "settings", "set track_counts = on"),
        ("datestyle='German'", "sessions", "set datestyle to ISO"),
        ("intervalstyle=iso_8601", "sessions", "set intervalstyle to postgres"),
        ("array_nulls=off", "sessions", "set array_nulls to on"),
        ("enable_indexscan=off", "sessions", "set enable_indexscan to on"),
    ],
)
def test_a_setting_of_the_database_is_found(engine: Engine, name: str, check: str, advice: str) -> None:
    setting, _, value = name.partition("=")
    assert f"{setting} =" not in checks(engine.url.render_as_string(hide_password=False))[check].found or setting in OF_TESTS
    configure(engine, **{setting: value})
    found = checks(engine.url.render_as_string(hide_password=False))[check]
    assert found.status is not Status.OK
    assert f"{setting} = {value.strip(chr(39))}" in found.found
    assert advice in found.advice


def test_no_database_is_found(run: Run) -> None:
    result = document(run("doctor", "--json", status=1, url="postgresql://nobody:secret@127.0.0.1:1/none"))
    assert [check["name"] for check in result["checks"]] == ["versions", "connection"]
    assert "cannot use" in result["checks"][1]["found"]
    assert "secret" not in str(result)
    assert "pg_hba.conf" in result["checks"][1]["advice"]


def test_tables_that_are_missing_or_old_are_found(engine: Engine, database_url: str) -> None:
    with engine.begin() as connection:
        connection.execute(text("COMMENT ON TABLE job IS 'sa_jobqueue version=0'"))
    found = checks(database_url)
    assert found["schema"].status is Status.ERROR
    assert "alembic upgrade head" in found["schema"].advice
    assert not {"privileges", "storage"} & set(found)
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE job RENAME TO work"))
    assert "does not exist" in checks(database_url)["schema"].found


def test_missing_privileges_are_found(engine: Engine, database_url: str, run: Run) -> None:
    prefix = f"t{engine.url.database}"[:40].lower()
    run("grants", "--roles", prefix, "--apply")
    user = f"{prefix}_app"
    with engine.begin() as connection:
        connection.execute(text(f'CREATE ROLE "{user}" LOGIN PASSWORD \'app\' IN ROLE "{prefix}_producer"'))
    url = make_url(database_url).set(username=user, password="app").render_as_string(hide_password=False)
    try:
        assert checks(url, role="producer")["privileges"].status is Status.OK
        found = checks(url)["privileges"]
        assert found.status is Status.ERROR
        assert "UPDATE, DELETE on job" in found.found
        assert f'GRANT jobqueue_worker TO "{user}"' in found.advice
        with engine.begin() as connection:  # of one column
            connection.execute(text(f'REVOKE UPDATE (has_waiters) ON job FROM "{prefix}_producer"'))
        assert checks(url, role="producer")["privileges"].found == f"role {user} lacks UPDATE on job"
        with engine.begin() as connection:
            connection.execute(text(f'REVOKE USAGE ON SCHEMA public FROM PUBLIC, "{prefix}_producer"'))
        assert checks(url)["schema"].status is Status.ERROR
    finally:
        with engine.begin() as connection:
            for role in (user, *(f"{prefix}_{one}" for one in ("producer", "worker", "observer", "operator"))):
                connection.execute(text(f'DROP OWNED BY "{role}"; DROP ROLE "{role}"'))


def test_a_changed_storage_parameter_is_found(engine: Engine, database_url: str) -> None:
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE job RESET (autovacuum_vacuum_scale_factor)"))
    found = checks(database_url)["storage"]
    assert found.status is Status.WARNING
    with engine.begin() as connection:
        connection.execute(text(found.advice))
    assert checks(database_url)["storage"].status is Status.OK


def test_a_pooler_is_found(database_url: str, pooler: MakePooler) -> None:
    url = pooler().url
    found = checks(url)
    assert found["pooler"].status is Status.WARNING
    assert "--listen-url" in found["pooler"].advice
    assert found["planner"].status is Status.OK  # its settings travel with each transaction
    assert checks(url, listen_url=make_url(database_url))["pooler"].status is Status.OK
    refused = checks(url, listen_url=make_url(url))["pooler"]
    assert refused.status is Status.ERROR
    assert "the PostgreSQL server itself" in refused.advice


@pytest.mark.parametrize("ahead", [timedelta(minutes=2), timedelta(minutes=-2)])
def test_a_clock_that_is_wrong_is_found(database_url: str, ahead: timedelta) -> None:
    found = checks(database_url, now=lambda: datetime.now(UTC) + ahead)["clock"]
    assert found.status is Status.WARNING
    assert f"120 s {'ahead of' if ahead > timedelta(0) else 'behind'} the server's" in found.found
    assert "NTP" in found.advice


def test_a_slow_answer_is_not_taken_for_a_wrong_clock(database_url: str) -> None:
    times = itertools.count()
    found = checks(database_url, now=lambda: datetime.now(UTC) + timedelta(seconds=20 * next(times) - 10))
    assert found["clock"].status is Status.OK


def fake_version(monkeypatch: pytest.MonkeyPatch, **versions: str) -> None:
    real = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: versions.get(name) or real(name))


@pytest.mark.parametrize("version", ["2.0.35", "2.2.0b1", "1.4"])
def test_a_version_that_is_not_supported_is_found(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    assert _doctor.versions().status is Status.OK
    fake_version(monkeypatch, sqlalchemy=version)
    found = _doctor.versions()
    assert found.status is Status.ERROR
    assert found.found.startswith(f"sqlalchemy {version} is not ")
    assert found.advice.startswith("python -m pip install 'sqlalchemy")


def test_a_python_that_is_not_tested_and_a_missing_distribution_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "python_version_tuple", lambda: ("3", "99", "0"))
    assert "not tested" in _doctor.versions().found
    monkeypatch.setattr(_doctor, "DISTRIBUTION", "sa-jobqueue-is-not-installed")
    assert _doctor.versions().status is Status.WARNING


def test_a_login_trigger_that_undoes_a_workers_settings_is_found(
    newest_server: PostgresServer, make_database: Callable[[PostgresServer], str]
) -> None:
    url = make_database(newest_server)
    engine = create_engine(url)
    with engine.begin() as connection:
        if connection.execute(text("SELECT current_setting('server_version_num')::int")).scalar_one() < 170_000:
            pytest.skip("triggers on login came with PostgreSQL 17")
        assert checks(url)["planner"].status is Status.OK
        connection.execute(
            text(
                "CREATE FUNCTION undo() RETURNS event_trigger LANGUAGE plpgsql AS "
                "$$ BEGIN PERFORM set_config('enable_seqscan', 'on', false); END $$; "
                "CREATE EVENT TRIGGER undo ON login EXECUTE FUNCTION undo()"
            )
        )
    found = checks(url)["planner"]
    assert found.status is Status.ERROR
    assert "enable_seqscan = on in a worker's session" in found.found
    engine.dispose()
    drop_database(url)


def test_an_encoding_and_a_standby_are_found() -> None:
    assert _doctor._encoding({"server_encoding": "LATIN1"}).status is Status.WARNING
    assert "target_session_attrs=read-write" in _doctor._primary({"in_hot_standby": "on"}).advice
    assert _doctor._primary({"in_hot_standby": "off"}).status is Status.OK
    assert _doctor._version({"server_version_num": "140012", "server_version": "14.12"}).status is Status.ERROR

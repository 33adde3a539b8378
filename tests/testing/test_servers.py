"""Which provider gives the server, and the error if none does."""

import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from sa_jobqueue.errors import JobQueueError
from sa_jobqueue.testing import binaries, containers, servers
from sa_jobqueue.testing.binaries import BinaryDir
from sa_jobqueue.testing.embedded import ServerStartError
from sa_jobqueue.testing.servers import ServerUnavailableError, open_server

WHEEL = BinaryDir(path=Path("/wheel/bin"), version=(18, 6))
LOCAL_15 = BinaryDir(path=Path("/local/15/bin"), version=(15, 18))
LOCAL_17 = BinaryDir(path=Path("/local/17/bin"), version=(17, 2))


class FakeServer:
    """Stand where a provider's server would, and remember its arguments."""

    def __init__(self, *made_of: Any, **options: Any) -> None:
        self.made_of = made_of
        self.options = options

    def start(self) -> "FakeServer":
        return self


class FakeEmbedded(FakeServer):
    pass


class FakeContainer(FakeServer):
    pass


class FakeExternal(FakeServer):
    pass


def no_docker(settings: Mapping[str, str]) -> FakeContainer:
    raise ServerStartError("no such socket")


class Machine:
    """Set the results of the probes."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch
        self.has()
        patch.setattr(servers, "EmbeddedServer", FakeEmbedded)
        patch.setattr(servers, "ExternalServer", FakeExternal)

    def has(
        self, *, url: str | None = None, docker: bool = False, wheel: bool = False, local: tuple[BinaryDir, ...] = ()
    ) -> None:
        in_wheel = [WHEEL] if wheel else []
        self._patch.setattr(servers, "ContainerServer", FakeContainer if docker else no_docker)
        self._patch.setattr(servers, "binary_dirs", lambda: [*local, *in_wheel])
        if url is None:
            self._patch.delenv("SA_JOBQUEUE_URL", raising=False)
        else:
            self._patch.setenv("SA_JOBQUEUE_URL", url)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def opened(provider: str = "auto", **options: Any) -> FakeServer:
    server = open_server(provider, **options)
    assert isinstance(server, FakeServer)
    return server


def test_an_explicit_url_takes_precedence_over_all_providers(machine: Machine) -> None:
    machine.has(url="postgresql://db/one", docker=True, wheel=True, local=(LOCAL_15,))
    server = opened()
    assert isinstance(server, FakeExternal)
    assert server.made_of == ("postgresql://db/one",)


def test_an_empty_url_counts_as_not_set(machine: Machine) -> None:
    machine.has(url="", docker=True)
    assert isinstance(opened(), FakeContainer)


def test_the_next_provider_is_used_when_one_fails_to_start(machine: Machine) -> None:
    machine.has(wheel=True)
    assert isinstance(opened(), FakeEmbedded)


def test_the_error_without_any_server_names_each_provider_reason_and_remedy(machine: Machine) -> None:
    with pytest.raises(ServerUnavailableError) as caught:
        open_server()
    assert isinstance(caught.value, JobQueueError)
    assert [provider for provider, *_ in caught.value.attempts] == ["docker", "newest"]
    words = str(caught.value)
    for expected in ("no such socket", "nor initdb and postgres", "pip install", "apt-get install"):
        assert expected in words


def test_a_url_that_does_not_answer_is_not_replaced_by_another_server(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        monkeypatch.setenv("SA_JOBQUEUE_URL", f"postgresql://127.0.0.1:{reserved.getsockname()[1]}/postgres")
        with pytest.raises(ServerUnavailableError) as caught:
            open_server()
    assert [provider for provider, *_ in caught.value.attempts] == ["SA_JOBQUEUE_URL"]


@pytest.mark.parametrize("url", ["mysql://db/one", "sqlite:///file"])
def test_a_url_of_another_database_is_refused(url: str) -> None:
    with pytest.raises(ServerUnavailableError, match="PostgreSQL is wanted"):
        open_server(url)


def test_a_provider_requested_by_name_is_the_only_one_tried(machine: Machine) -> None:
    machine.has(docker=True)
    with pytest.raises(ServerUnavailableError) as caught:
        open_server("newest")
    assert [provider for provider, *_ in caught.value.attempts] == ["newest"]


@pytest.mark.parametrize(("word", "expected"), [("oldest", LOCAL_15), ("newest", WHEEL)])
def test_oldest_and_newest_choose_among_all_binaries(machine: Machine, word: str, expected: BinaryDir) -> None:
    machine.has(wheel=True, local=(LOCAL_15, LOCAL_17))
    assert opened(word).made_of[0] == expected.path


def test_an_unknown_provider_error_lists_the_known_ones(machine: Machine) -> None:
    with pytest.raises(ValueError, match="docker, newest, oldest"):
        open_server("podman")


def test_options_reach_the_server(machine: Machine) -> None:
    machine.has(wheel=True)
    server = opened(settings={"fsync": "off"}, tcp=True)
    assert server.made_of[1] == {"fsync": "off"}
    assert server.options == {"tcp": True}


def test_docker_is_skipped_for_a_server_with_a_data_directory(machine: Machine) -> None:
    machine.has(docker=True, wheel=True)
    assert isinstance(opened(data_dir=Path("/no-such-place/data")), FakeEmbedded)


def test_docker_without_a_socket_is_unavailable_without_loading_its_client(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/docker.sock")
    with pytest.raises(ServerStartError, match=r"does not answer: .*docker\.sock"):
        containers.ContainerServer({})
    assert "testcontainers" not in sys.modules


@pytest.mark.parametrize(
    ("answer", "version"),
    [
        ("postgres (PostgreSQL) 18.6", (18, 6)),
        ("postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)", (15, 18)),
        ("postgres (PostgreSQL) 19beta1", (19,)),
        ("something else", None),
    ],
)
def test_the_version_is_read_from_the_output_of_postgres(
    tmp_path: Path, answer: str, version: tuple[int, ...] | None
) -> None:
    program = tmp_path / "postgres"
    program.write_text(f"#!/bin/sh\necho '{answer}'\n")
    program.chmod(0o755)
    assert binaries.read_version(tmp_path) == version

"""A PostgreSQL server in a container, through testcontainers, which is loaded only once Docker is known to be there."""

import os
import socket
from collections.abc import Mapping
from types import TracebackType
from typing import Final, Self

from sqlalchemy.exc import SQLAlchemyError

from sa_jobqueue.testing.databases import server_version
from sa_jobqueue.testing.embedded import ServerStartError

IMAGE: Final = "postgres:18-alpine"
_DEFAULT_HOST = "unix:///var/run/docker.sock"
_PING_SECONDS = 3


def docker_silence() -> str | None:
    """Ask Docker for a sign of life, waiting 3 seconds at most; None when it answers, else why it does not."""
    host = os.environ.get("DOCKER_HOST") or _DEFAULT_HOST
    try:
        _knock(host)
        _ping()
    except (ImportError, OSError) as error:  # its HTTP client's errors are OSErrors
        return f"{host}: {error}"
    return None


class ContainerServer:
    """Start a server in a new container, and remove the container when the server is stopped.

    Raises: `ServerStartError` when the image cannot be fetched or the server does not start.
    """

    def __init__(self, settings: Mapping[str, str], image: str = IMAGE) -> None:
        from docker.errors import DockerException
        from testcontainers.community.postgres import PostgresContainer

        flags = " ".join(f"-c {name}={value}" for name, value in settings.items())
        self._container = PostgresContainer(image, driver="psycopg", dbname="postgres").with_command(
            f"postgres {flags}".rstrip()
        )
        try:
            self._container.start()
            self.url = str(self._container.get_connection_url())
            self.version = server_version(self.url)
        except (DockerException, SQLAlchemyError, OSError, RuntimeError) as error:
            self.stop()
            raise ServerStartError(f"the container of {image} did not start: {error}") from error

    def stop(self) -> None:
        """Stop the container and remove it with its volume."""
        self._container.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()


def _knock(host: str) -> None:
    # Most machines without Docker are detected here, quickly. Its client takes a tenth of a second to load, and
    # leaves the socket open that it could not connect, which a suite with warnings as errors pays for.
    if host.startswith("unix://"):
        with socket.socket(socket.AF_UNIX) as door:
            door.settimeout(_PING_SECONDS)
            door.connect(host.removeprefix("unix://"))


def _ping() -> None:
    import docker
    from docker.errors import DockerException

    try:
        client = docker.from_env(timeout=_PING_SECONDS)
        try:
            client.ping()
        finally:
            client.close()
    except DockerException as error:
        raise ConnectionError(str(error)) from error

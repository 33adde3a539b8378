"""A PostgreSQL server in a container, through testcontainers, which is loaded only once Docker is known to be there."""

import os
import socket
from collections.abc import Mapping
from typing import Final

from sqlalchemy.exc import SQLAlchemyError

from sa_jobqueue.testing.databases import server_version
from sa_jobqueue.testing.embedded import PostgresServer, ServerStartError

IMAGE: Final = "postgres:18-alpine"
_DEFAULT_HOST = "unix:///var/run/docker.sock"
_PING_SECONDS = 3


class ContainerServer(PostgresServer):
    """Start a server in a new container, and remove the container when the server is stopped.

    Raises: `ServerStartError` when the image cannot be fetched or the server does not start.
    """

    def __init__(self, settings: Mapping[str, str], image: str = IMAGE) -> None:
        _knock()
        try:
            from docker.errors import DockerException
            from testcontainers.community.postgres import PostgresContainer
        except ImportError as error:
            raise ServerStartError(f"testcontainers is not installed: {error}") from error
        flags = " ".join(f"-c {name}={value}" for name, value in settings.items())
        container = None
        try:
            container = PostgresContainer(image, driver="psycopg", dbname="postgres").with_command(
                f"postgres {flags}".rstrip()
            )
            container.start()
            self.url = str(container.get_connection_url())
            self.version = server_version(self.url)
        except (DockerException, SQLAlchemyError, OSError, RuntimeError) as error:
            if container is not None:
                container.stop()
            raise ServerStartError(f"the container of {image} did not start: {error}") from error
        self._container = container

    def stop(self) -> None:
        """Stop the container and remove it with its volume."""
        self._container.stop()


def _knock() -> None:
    # Most machines without Docker are detected here, quickly. Its client takes a tenth of a second to load, and
    # leaves the socket open that it could not connect, which a suite with warnings as errors pays for.
    host = os.environ.get("DOCKER_HOST") or _DEFAULT_HOST
    if host.startswith("unix://"):
        try:
            with socket.socket(socket.AF_UNIX) as door:
                door.settimeout(_PING_SECONDS)
                door.connect(host.removeprefix("unix://"))
        except OSError as error:
            raise ServerStartError(f"Docker does not answer: {host}: {error}") from error

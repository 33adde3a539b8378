"""The HTTP endpoint for Prometheus, served from a thread."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

from sa_jobqueue.errors import InvalidOptionError, MissingExtraError
from sa_jobqueue.observe.slow_clients import BoundedRequestHandler

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


def new_registry() -> CollectorRegistry:
    """Return an empty registry. Raises: MissingExtraError."""
    try:
        from prometheus_client import CollectorRegistry
    except ModuleNotFoundError as error:
        raise MissingExtraError("prometheus-client", "metrics") from error
    return CollectorRegistry()


@contextmanager
def serve_metrics(registry: CollectorRegistry, *, port: int, address: str = "127.0.0.1") -> Iterator[int]:
    """Serve a registry's metrics on every path of a port, from a thread, while the block runs; yield the port.

    `port`: 0 means a free one. `address`: the address to listen on; the default accepts only this machine.
    Raises: InvalidOptionError if the port cannot be bound.
    """
    from prometheus_client import start_http_server

    try:
        server, thread = start_http_server(port, addr=address, registry=registry)
    except (OSError, OverflowError) as error:
        raise InvalidOptionError("metrics port", f"cannot listen on {address}:{port}: {error}") from error
    # Of its own, prometheus-client waits for a request without end.
    server.RequestHandlerClass = type("_Handler", (BoundedRequestHandler, cast("type", server.RequestHandlerClass)), {})
    try:
        yield int(server.server_port)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

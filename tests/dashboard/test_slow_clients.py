"""A client that stops sending or reading keeps neither a connection nor a thread of the servers that the commands start."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import pytest
from prometheus_client import CollectorRegistry

from sa_jobqueue import WorkerOptions
from sa_jobqueue.cli import _http
from sa_jobqueue.cli._serving import serve_probes
from sa_jobqueue.cli.dashboard import served
from sa_jobqueue.observe.metrics.serving import serve_metrics
from sa_jobqueue.observe.slow_clients import BoundedRequestHandler
from sa_jobqueue.worker.background.vitals import VitalSigns
from tests.fixtures.workers import PATIENCE

LIMIT = timedelta(milliseconds=500)
WHOLE = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"
LARGE = 64 * 1024 * 1024
"""Bytes of a response that fit into no buffer."""

Port = Callable[[], Any]


async def application(scope: Any, receive: Any, send: Any) -> None:
    """Answer `/slow` after a multiple of the limit, `/large` with much, and a POST when its body has arrived."""
    if scope["method"] == "POST":
        while (await receive()).get("more_body"):
            pass
    if scope["path"] == "/slow":
        await asyncio.sleep(3 * LIMIT.total_seconds())
    body = b"." * (LARGE if scope["path"] == "/large" else 2)
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


@contextmanager
def dashboard() -> Iterator[int]:
    with served(application) as url:
        yield urlsplit(url).port or 0


@contextmanager
def probes() -> Iterator[int]:
    with serve_probes(VitalSigns(WorkerOptions()).read, limit=timedelta(minutes=5), port=0, address="127.0.0.1") as port:
        yield port


@contextmanager
def metrics() -> Iterator[int]:
    with serve_metrics(CollectorRegistry(), port=0) as port:
        yield port


@pytest.fixture(autouse=True)
def _limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_http, "SLOWEST", LIMIT)
    monkeypatch.setattr(BoundedRequestHandler, "timeout", LIMIT.total_seconds())


@contextmanager
def connected(port: int) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as client:
        yield client


def received(client: socket.socket) -> bytes:
    """Return all that the server sends until it closes the connection. Raises: TimeoutError if it does not."""
    parts = []
    try:
        while part := client.recv(1 << 20):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


def trickle(client: socket.socket, content: bytes) -> None:
    """Send a byte at a time, so slowly that all of it would take far longer than the limit."""
    for place in range(len(content)):
        try:
            client.send(content[place : place + 1])
        except OSError:  # it has closed the connection
            return
        time.sleep(LIMIT.total_seconds() / 4)


@pytest.mark.slow
@pytest.mark.parametrize("server", [dashboard, probes, metrics])
@pytest.mark.parametrize("begun", [b"", b"GET /liv", WHOLE[:-2]], ids=["nothing", "a line", "no end"])
def test_a_request_that_is_not_sent_to_its_end_ends_its_connection(server: Port, begun: bytes) -> None:
    with server() as port, connected(port) as client:
        client.sendall(begun)
        assert not received(client).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("server", [dashboard, probes, metrics])
def test_a_request_that_is_sent_byte_by_byte_ends_its_connection(server: Port) -> None:
    with server() as port, connected(port) as client:
        sending = threading.Thread(target=trickle, args=(client, WHOLE[:-2] + 200 * b"X: y\r\n"))
        sending.start()
        began = time.monotonic()
        received(client)
        sending.join()
        assert time.monotonic() - began < PATIENCE


def test_a_second_request_that_is_not_sent_to_its_end_ends_its_connection() -> None:
    with dashboard() as port, connected(port) as client:
        client.sendall(WHOLE + WHOLE[:-2])
        assert received(client).count(b"HTTP/1.1 200") == 1


def test_a_body_that_does_not_arrive_ends_its_connection() -> None:
    with dashboard() as port, connected(port) as client:
        client.sendall(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nfirst=")
        assert received(client) == b""


@pytest.mark.slow
def test_a_client_that_does_not_read_the_response_loses_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = threading.Event()
    monkeypatch.setattr(_http.BoundedH11Protocol, "connection_lost", lambda self, error: lost.set())
    with dashboard() as port, connected(port) as client:
        client.sendall(b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert lost.wait(PATIENCE)
        assert len(received(client)) < LARGE


def test_an_application_may_take_longer_than_its_clients() -> None:
    with dashboard() as port, connected(port) as client:
        client.sendall(b"GET /slow HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert received(client).startswith(b"HTTP/1.1 200")


def test_a_client_that_reads_slowly_gets_the_whole_response() -> None:
    with dashboard() as port, connected(port) as client:
        client.sendall(b"GET /large HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        count = 0
        while part := client.recv(4 << 20):
            count += len(part)
            time.sleep(LIMIT.total_seconds() / 50)
        assert count > LARGE


def test_many_connections_on_which_nothing_arrives_leave_the_server_usable() -> None:
    with dashboard() as port:
        clients = [socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) for _ in range(50)]
        with connected(port) as client:
            client.sendall(WHOLE)
            assert client.recv(100).startswith(b"HTTP/1.1 200")
        assert [received(client) for client in clients] == [b""] * 50
        for client in clients:
            client.close()

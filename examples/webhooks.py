"""Webhooks in both directions: each event that comes in is handled once, each that goes out has an idempotency key.

Run it with `python examples/webhooks.py`.
"""

import asyncio
import hashlib
import hmac
import json
import os
import threading
from dataclasses import dataclass
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
from sqlalchemy import Engine, create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sa_jobqueue import AttemptContext, Deduplicate, Discard, JobMixin, JobQueue, Retry, Worker, enqueue, list_jobs
from sa_jobqueue.testing.servers import open_server


class Base(DeclarativeBase):
    pass


class Job(JobMixin, Base):
    pass


class Payment(Base):
    __tablename__ = "payment"

    order_id: Mapped[int] = mapped_column(primary_key=True)


jobs = JobQueue(Job)
SECRET = os.environ.get("WEBHOOK_SECRET", "shared with the provider").encode()


def sign(body: bytes) -> str:
    return hmac.new(SECRET, body, hashlib.sha256).hexdigest()


def receive(engine: Engine, body: bytes, signature: str) -> str:
    """Check, enqueue, commit, answer, as a view does. An event may come twice."""
    if not hmac.compare_digest(signature, sign(body)):
        raise PermissionError("wrong signature")  # the view answers 401
    event = json.loads(body)
    # As long as the provider may send it again, ended jobs count, too. Retention must keep them as long.
    once = Deduplicate(event["id"], scope="any", window=timedelta(days=30))
    with Session(engine) as session, session.begin():
        _, outcome = enqueue(session, payment_received.job(Event(event["order_id"])), deduplicate=once)
        return str(outcome)


@dataclass
class Event:
    order_id: int


@dataclass
class Delivery:
    url: str
    body: dict[str, int]


@jobs.handler("payment_received")
def payment_received(event: Event, session: Session) -> None:
    """Write the payment, and enqueue what tells the partner of it: one commit."""
    session.add(Payment(order_id=event.order_id))
    session.add(deliver.job(Delivery(PARTNER.url, {"paid": event.order_id})))


@jobs.handler("deliver", max_attempts=10, timeout=timedelta(seconds=30))
def deliver(delivery: Delivery, ctx: AttemptContext) -> int:
    """Send one event. The key is the same in each attempt, so the receiver can drop a repetition."""
    body = json.dumps(delivery.body).encode()
    headers = {"Content-Type": "application/json", "Idempotency-Key": str(ctx.job.id), "Signature": sign(body)}
    answer = httpx.post(delivery.url, content=body, headers=headers, timeout=10)
    if answer.is_success:
        return answer.status_code
    if answer.status_code not in {408, 425, 429} and answer.status_code < 500:
        raise Discard(f"status {answer.status_code}: another attempt would get the same")
    if (seconds := answer.headers.get("Retry-After", "")).isdecimal():
        raise Retry(timedelta(seconds=min(int(seconds), 3600)), reason=f"status {answer.status_code}")
    raise ConnectionError(f"status {answer.status_code}")  # another attempt by the backoff, as after a timeout


class Partner:
    """A receiver that is overloaded at first, and then takes each key once."""

    def __init__(self) -> None:
        self.seen: dict[str, object] = {}
        self.calls = 0
        partner = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                partner.calls += 1
                if partner.calls == 1:
                    self.send_response(503)
                    self.send_header("Retry-After", "0")
                else:
                    partner.seen.setdefault(self.headers["Idempotency-Key"], body)
                    self.send_response(202)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/events"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


PARTNER = Partner()


def main() -> None:
    with open_server() as server:
        engine = create_engine(server.url)
        Base.metadata.create_all(engine)
        first_event, second_event = (json.dumps({"id": f"evt_{n}", "order_id": n}).encode() for n in (1, 2))
        for body in (first_event, second_event, first_event):
            print(f"{body.decode()}: {receive(engine, body, sign(body))}")
        try:
            receive(engine, first_event, sign(second_event))
        except PermissionError as error:
            print(error)
        asyncio.run(Worker(jobs, engine).run_until_idle())
        print(f"the second again, when it is done: {receive(engine, second_event, sign(second_event))}")
        with Session(engine) as session:
            delivered = [job.output for job in list_jobs(session, model=Job) if job.type_name == "deliver"]
        print(f"delivered {delivered}, in {PARTNER.calls} calls: {sorted(PARTNER.seen.values(), key=str)}")
        engine.dispose()
    PARTNER.server.shutdown()
    PARTNER.server.server_close()


if __name__ == "__main__":
    main()

# Output:
# {"id": "evt_1", "order_id": 1}: created
# {"id": "evt_2", "order_id": 2}: created
# {"id": "evt_1", "order_id": 1}: existing
# wrong signature
# the second again, when it is done: existing
# delivered [202, 202], in 3 calls: [{'paid': 1}, {'paid': 2}]

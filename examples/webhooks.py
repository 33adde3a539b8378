"""Webhooks in both directions: each event that comes in is handled once, each that goes out has an idempotency key.

Run it with `python examples/webhooks.py`.
"""

import asyncio
import json
import threading
import urllib.error
import urllib.request
from dataclasses import dataclass
from datetime import timedelta
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

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


@dataclass
class Delivery:
    url: str
    body: dict[str, int]


@jobs.handler("deliver", max_attempts=10, timeout=timedelta(seconds=30))
def deliver(delivery: Delivery, ctx: AttemptContext) -> int:
    """Send one event. The key is the same in each attempt, so that the receiver can drop what it has seen."""
    headers = {"Content-Type": "application/json", "Idempotency-Key": str(ctx.job.id)}
    request = urllib.request.Request(delivery.url, json.dumps(delivery.body).encode(), headers, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=10) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code in {408, 425, 429} or error.code >= 500:
            raise Retry(delay_of(error.headers), reason=f"status {error.code}") from None
        raise Discard(f"status {error.code}: another attempt would get the same") from None


def delay_of(headers: Message) -> timedelta:
    """Return how long the receiver asks us to wait."""
    return timedelta(seconds=float(headers.get("Retry-After") or 30))


@jobs.handler("payment_received")
def payment_received(event: dict[str, int], session: Session) -> None:
    """Write the payment, and enqueue what tells the partner of it: one commit."""
    session.add(Payment(order_id=event["order_id"]))
    session.add(deliver.job(Delivery(PARTNER.url, {"paid": event["order_id"]})))


def receive(engine: Engine, event_id: str, event: dict[str, int]) -> str:
    """What a view does when a provider calls it: enqueue, commit, answer. A provider sends an event more than once."""
    with Session(engine) as session, session.begin():
        # As long as the provider may send it again, ended jobs count, too.
        once = Deduplicate(event_id, scope="any", window=timedelta(days=30))
        _, outcome = enqueue(session, payment_received.job(event), deduplicate=once)
        return str(outcome)


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
        for event_id, order_id in (("evt_1", 7), ("evt_2", 8), ("evt_1", 7)):
            print(f"{event_id}: {receive(engine, event_id, {'order_id': order_id})}")
        asyncio.run(Worker(jobs, engine).run_until_idle())
        print(f"evt_2 again, when it is done: {receive(engine, 'evt_2', {'order_id': 8})}")
        with Session(engine) as session:
            delivered = [job.output for job in list_jobs(session, model=Job) if job.type_name == "deliver"]
        print(f"delivered {delivered}, in {PARTNER.calls} calls: {sorted(PARTNER.seen.values(), key=str)}")
        engine.dispose()
    PARTNER.server.shutdown()
    PARTNER.server.server_close()


if __name__ == "__main__":
    main()

# Output:
# evt_1: created
# evt_2: created
# evt_1: existing
# evt_2 again, when it is done: existing
# delivered [202, 202], in 3 calls: [{'paid': 7}, {'paid': 8}]

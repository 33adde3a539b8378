"""Calls of language models: tokens per minute for each model and tenant, and a wait as long as a 429 asks for.

Run it with `python examples/llm_calls.py`. It needs httpx; the provider is a server on this machine.
"""

import asyncio
import json
import os
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
from pydantic import BaseModel
from sqlalchemy import Engine, create_engine, select
from sqlalchemy.orm import Session

from sa_jobqueue import AttemptContext, Discard, Job, JobQueue, Snooze, Worker, WorkerOptions, wait_chain
from sa_jobqueue.testing.servers import open_server

MINUTE = timedelta(milliseconds=400)  # of this example


class Prompt(BaseModel):
    model: str
    text: str
    max_tokens: int


jobs = JobQueue()
failures: list[str] = []
LIMITS = {"large": 900, "small": 3600}
"""Tokens in any minute: 90 % of the provider's limit, as they are estimated."""
LONGEST = 300
"""Tokens of the longest call: the burst, so that no call costs more. In any minute at most the rate and the burst start."""
for model, tokens in LIMITS.items():
    rate = {"rate_limit": tokens - LONGEST, "rate_burst": LONGEST, "rate_period": MINUTE}
    jobs.queue(f"llm:{model}", global_concurrency=20, concurrency_per_key=4, **rate)
    # The tenant is the fairness key, so tenants share the limit. Those on the free plan get half of the rate at most.
    jobs.queue(f"llm:{model}", fairness_key="free", **rate | {"rate_limit": (tokens - LONGEST) // 2})


async def call_model(prompt: Prompt, user: str) -> str:
    """Ask the provider; if it is busy, wait as long as it asks for, without counting the attempt."""
    key = os.environ.get("PROVIDER_KEY", "for this example")
    async with httpx.AsyncClient(timeout=120, headers={"Authorization": f"Bearer {key}"}) as client:
        call = prompt.model_dump() | {"user": user}
        answer = await client.post(PROVIDER.url, json=call)
    if answer.status_code in {429, 503, 529}:
        seconds = answer.headers.get("Retry-After", "")
        raise Snooze(timedelta(seconds=min(int(seconds), 3600) if seconds.isdecimal() else 30))
    if answer.status_code in {400, 413, 422}:
        raise Discard(f"status {answer.status_code}: {answer.text}")  # the prompt is at fault
    answer.raise_for_status()  # 5xx, or a wrong key: a failed attempt, retried with backoff
    return str(answer.json()["text"])


@jobs.handler("complete", max_attempts=5, timeout=timedelta(minutes=5))
async def complete(prompt: Prompt, ctx: AttemptContext) -> str:
    """Pay for an answer once: an attempt that fails after the step gets it from the step, without a call."""
    text = await ctx.step("answer", call_model, prompt, str(ctx.job.id))
    if not failures:
        failures.append(text)
        raise ConnectionError("after the first answer, which is paid for")
    return text


def ask(session: Session, tenant: str, prompt: Prompt) -> None:
    """Enqueue a call. Its cost is the provider's: four characters a token, and the longest answer."""
    tokens = len(prompt.text) // 4 + prompt.max_tokens
    session.add(complete.job(prompt, queue=f"llm:{prompt.model}", fairness_key=tenant, rate_cost=tokens))


class Provider:
    """A provider that refuses the first call, for a second."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, float]] = []
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                call = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                provider.calls.append((call["user"], time.monotonic()))
                is_first = len(provider.calls) == 1
                self.send_response(429 if is_first else 200)
                if is_first:
                    self.send_header("Retry-After", "1")
                self.end_headers()
                self.wfile.write(json.dumps({"text": "42 km"}).encode())

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1/complete"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


PROVIDER = Provider()


async def work(engine: Engine, ids: Sequence[object]) -> None:
    """Run a worker until all calls are answered."""
    worker = Worker(jobs, engine, options=WorkerOptions(queues=[f"llm:{model}" for model in LIMITS]))
    running = asyncio.create_task(worker.run())
    for job_id in ids:
        await asyncio.to_thread(wait_chain, engine, job_id, timeout=timedelta(seconds=30))
    worker.stop()
    await running


def main() -> None:
    with open_server() as server:
        engine = create_engine(server.url)
        Job.metadata.create_all(engine)
        with Session(engine) as session, session.begin():
            for number in range(9):
                ask(session, ("acme", "zed", "free")[number % 3], Prompt(model="large", text="How far?", max_tokens=298))
        with Session(engine) as session:
            asyncio.run(work(engine, session.scalars(select(Job.id)).all()))
            finished_jobs = session.scalars(select(Job)).all()
        refused, again = (at for user, at in PROVIDER.calls if user == PROVIDER.calls[0][0])
        print(f"{sum(job.output == '42 km' for job in finished_jobs)} answers in {len(PROVIDER.calls)} calls")
        print("attempts that failed after their answer:", len(failures))
        print("asked again after the second that the provider wanted:", again - refused >= 1)
        for limit, name, limited_jobs in (
            (900, "all", finished_jobs),
            (600, "free", [job for job in finished_jobs if job.fairness_key == "free"]),
        ):
            starts = [(job.started_at, job.rate_cost) for job in limited_jobs]
            most = max(
                sum(cost for at, cost in starts if period_end - MINUTE < at <= period_end) for period_end, _ in starts
            )
            print(f"{name}: at most {limit} tokens in any period: {most <= limit}")
        engine.dispose()
    PROVIDER.server.shutdown()
    PROVIDER.server.server_close()


if __name__ == "__main__":
    main()

# Output:
# 9 answers in 10 calls
# attempts that failed after their answer: 1
# asked again after the second that the provider wanted: True
# all: at most 900 tokens in any period: True
# free: at most 600 tokens in any period: True

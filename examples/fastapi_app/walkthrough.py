"""The whole round: migrate, place orders over HTTP, run the worker. `python examples/fastapi_app/walkthrough.py`"""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import httpx

from sa_jobqueue import Worker
from sa_jobqueue.testing.servers import open_server


async def walk() -> None:
    from app import app, engine, jobs  # it reads the database's URL when imported

    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop") as client:
        for order in ({"id": 7, "item": "lamp"}, {"id": 7, "item": "desk"}, {"id": 8, "item": "chair"}):
            print("POST", (await client.post("/orders", json=order)).status_code)
        print("GET", (await client.get("/orders/7")).json()["job_status"])

        await Worker(jobs, engine).run_until_idle()  # in production: sa-jobqueue worker app:jobs
        for number in (7, 8):
            order_status = (await client.get(f"/orders/{number}")).json()
            print("GET", order_status["item"], order_status["job_status"], order_status["tracking"])
    await engine.dispose()


def main() -> None:
    with open_server() as server:
        os.environ["SA_JOBQUEUE_URL"] = server.url
        subprocess.run([sys.executable, "-m", "alembic", "upgrade", "head"], cwd=Path(__file__).parent, check=True)
        asyncio.run(walk())


if __name__ == "__main__":
    main()

# Output:
# POST 201
# POST 409
# POST 201
# GET pending
# GET lamp completed TRACK-7
# GET chair completed TRACK-8

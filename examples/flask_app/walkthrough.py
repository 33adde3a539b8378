"""The whole round: migrate, publish over HTTP, run the worker. `python examples/flask_app/walkthrough.py`"""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

from sa_jobqueue import Worker
from sa_jobqueue.testing.servers import open_server


def walk() -> None:
    from app import app, engine, jobs  # it reads the database's URL when imported

    client = app.test_client()
    print("POST", client.post("/posts", json={"title": "First"}).status_code)
    print("POST", client.post("/posts", json={"title": ""}).status_code)
    print("GET", client.get("/jobs").json)
    asyncio.run(Worker(jobs, engine).run_until_idle())  # in production: sa-jobqueue worker app:jobs
    print("GET", client.get("/jobs").json)
    print("GET", client.get("/posts/1").json)
    engine.dispose()


def main() -> None:
    with open_server() as server:
        os.environ["SA_JOBQUEUE_URL"] = server.url
        subprocess.run([sys.executable, "-m", "alembic", "upgrade", "head"], cwd=Path(__file__).parent, check=True)
        walk()


if __name__ == "__main__":
    main()

# Output:
# POST 201
# POST 422
# GET [{'status': 'pending', 'type': 'tell_readers'}]
# GET [{'status': 'completed', 'type': 'tell_readers'}]
# GET {'readers_told': True, 'title': 'First'}

"""How much memory updates leave behind: python -m tests.dashboard.memory [UPDATES], 43,200 unless given.

A page that is updated every two seconds has so many in a day. Ten viewers ask in turn, of 100 queues with jobs that end
meanwhile. Prints the resident memory of the process after each tenth.
"""

from __future__ import annotations

import http.client
import os
import sys
from itertools import cycle
from urllib.parse import urlsplit

from sqlalchemy import create_engine, text

from sa_jobqueue import Job
from sa_jobqueue.cli.dashboard import served
from sa_jobqueue.dashboard import dashboard
from sa_jobqueue.migrations.runner import upgrade
from sa_jobqueue.testing.databases import create_database
from sa_jobqueue.testing.servers import open_server
from sa_jobqueue.worker.memory import resident_bytes
from tests.dashboard.conftest import everyone
from tests.dashboard.large import fill

_QUEUES = "UPDATE job SET queue = 'queue' || abs(hashtext(id::text)) % 100"
_ONE = (
    "UPDATE job SET status = 'completed', completed_at = now()"
    " WHERE id = (SELECT id FROM job WHERE status = 'pending' LIMIT 1)"
)
SCREENS = ("overview", "jobs", "queues", "limits", "workers")


def main(updates: int) -> None:
    """Update pages, and print what the process holds."""
    with open_server() as server:
        engine = create_engine(create_database(server.url))
        with engine.begin() as connection:
            upgrade(connection, Job.__jobqueue__)
        fill(engine, 20_000)
        with engine.begin() as connection:
            connection.execute(text("SET LOCAL session_replication_role = replica"))
            connection.execute(text(_QUEUES))
        with served(dashboard(engine, authorize=everyone)) as url:
            viewers = [http.client.HTTPConnection(urlsplit(url).netloc, timeout=60) for _ in range(10)]
            tags: dict[tuple[int, str], str] = {}
            turns = cycle([(number, screen) for screen in SCREENS for number in range(len(viewers))])
            print(f"{'updates':>10} {'unchanged':>10} {'MiB':>8}")
            unchanged = 0
            for count in range(1, updates + 1):
                number, screen = next(turns)
                headers = {"HX-Request": "true", "If-None-Match": tags.get((number, screen), "")}
                viewers[number].request("GET", f"/queue/{screen}", headers=headers)
                response = viewers[number].getresponse()
                response.read()
                assert response.status in {200, 304}, (screen, response.status)
                unchanged += response.status == 304
                tags[number, screen] = response.headers.get("ETag", "")
                if count % 100 == 0:
                    with engine.begin() as connection:
                        connection.execute(text("SET LOCAL session_replication_role = replica"))
                        connection.execute(text(_ONE))
                if count % max(updates // 10, 1) == 0:
                    held = (resident_bytes(os.getpid()) or 0) / 2**20
                    print(f"{count:10,} {unchanged:10,} {held:8.1f}", flush=True)
        engine.dispose()


if __name__ == "__main__":
    main(int((sys.argv[1:] or ["43200"])[0].replace("_", "")))

"""Changing a payload's shape while jobs of the old shape are in the table.

Run it with `python examples/payload_versions.py`.
"""

import asyncio
from typing import Any

from pydantic import BaseModel
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from sa_jobqueue import Job, JobQueue, Worker, list_jobs
from sa_jobqueue.testing.servers import open_server

yesterday = JobQueue()
today = JobQueue()


class GreetV1(BaseModel):
    name: str


@yesterday.handler("greet")
def greet_v1(person: GreetV1) -> str:
    return f"Hello {person.name}"


class Greet(BaseModel):
    """Version 2 splits the name, version 3 adds a language."""

    first: str
    last: str
    language: str


@today.handler("greet", version=3)
def greet(person: Greet) -> str:
    return f"{'Bonjour' if person.language == 'fr' else 'Hello'} {person.first} {person.last}"


# One step a version: each takes the JSON of its version and returns that of the next.
@greet.upcast(from_version=1)
def split_name(data: dict[str, Any]) -> dict[str, Any]:
    first, _, last = data["name"].partition(" ")
    return {"first": first, "last": last}


@greet.upcast(from_version=2)
def add_language(data: dict[str, Any]) -> dict[str, Any]:
    return data | {"language": "en"}


def main() -> None:
    with open_server() as server:
        engine = create_engine(server.url)
        Job.metadata.create_all(engine)
        with Session(engine) as session, session.begin():
            session.add(greet_v1.job(GreetV1(name="Ada Lovelace")))  # written by yesterday's deployment
            session.add(greet.job(Greet(first="Sophie", last="Germain", language="fr")))
        asyncio.run(Worker(today, engine).run_until_idle())
        with Session(engine) as session:
            for job in list_jobs(session, newest_first=False):
                print(f"input of version {job.input_version}: {job.output}")
        engine.dispose()


if __name__ == "__main__":
    main()

# Output:
# input of version 1: Hello Ada Lovelace
# input of version 3: Bonjour Sophie Germain

"""Encrypted payloads: the database has ciphertext only, and a rotated key still reads the jobs of before.

Run it with `python examples/encrypted_payloads.py`. It needs `pip install cryptography`, and uses the database of
SA_JOBQUEUE_URL, or starts one for itself.
"""

import asyncio
from dataclasses import dataclass

from cryptography.fernet import Fernet, MultiFernet
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from sa_jobqueue import Job, JobQueue, Worker, list_jobs
from sa_jobqueue.testing.servers import open_server


class Encrypted:
    """Encrypts with the first key; decrypts what any of them has encrypted."""

    name = "encrypted"

    def __init__(self, *keys: bytes):
        self._fernet = MultiFernet([Fernet(key) for key in keys])

    def encode(self, data: bytes) -> str:
        return self._fernet.encrypt(data).decode()

    def decode(self, stored: str) -> bytes:
        return self._fernet.decrypt(stored)


@dataclass
class Patient:
    name: str
    ward: int


def declare(codec: Encrypted) -> JobQueue:
    """Return the application's handlers. A real one has its keys when it is imported."""
    jobs = JobQueue()

    @jobs.handler("admit", codec=codec, fairness_by="ward")
    def admit(patient: Patient) -> str:
        return f"{patient.name} is in ward {patient.ward}"

    return jobs


with open_server() as server:
    engine = create_engine(server.url)
    Job.metadata.create_all(engine)
    old, new = Fernet.generate_key(), Fernet.generate_key()

    before = declare(Encrypted(old))
    with Session(engine) as session, session.begin():
        before["admit"].enqueue(session, Patient("Ann", ward=7))

    after = declare(Encrypted(new, old))  # the next deployment: a new key comes first
    with Session(engine) as session, session.begin():
        after["admit"].enqueue(session, Patient("Bob", ward=8))
    asyncio.run(Worker(after, engine).run_until_idle())

    with Session(engine) as session:
        for job in list_jobs(session, newest_first=False):
            stored = str([job.input, job.output])
            print(after["admit"].output(job.chain), "| fairness key", job.fairness_key, "| readable:", "ward" in stored)
    engine.dispose()

# Output:
# Ann is in ward 7 | fairness key 7 | readable: False
# Bob is in ward 8 | fairness key 8 | readable: False

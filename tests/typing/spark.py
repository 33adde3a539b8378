"""Type checker results for handlers with Spark or another dependency. Read, not run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import assert_type

from pyspark.sql import SparkSession
from sqlalchemy.orm import Session

from sa_jobqueue import AttemptContext, Job, JobQueue
from sa_jobqueue.registry import Handler
from tests.typing import jobs_of

jobs = JobQueue()


@dataclass
class Score:
    day: str


class Client: ...


@contextmanager
def lend_client(attempt: AttemptContext) -> Iterator[Client]:
    yield Client()


jobs.dependency(Client, lend_client)


@contextmanager
def new_session(attempt: AttemptContext) -> Iterator[SparkSession]:
    yield SparkSession.builder.getOrCreate().newSession()


jobs.dependency(SparkSession, new_session)
jobs.dependency(int, lend_client)  # E: incompatible type # mypy only
jobs.dependency(Client, 7)  # E: incompatible type "int"


@jobs.handler("score")
def score(payload: Score, spark: SparkSession, session: Session) -> int:
    return spark.range(3).count()


@jobs.handler("score_async")
async def score_async(payload: Score, client: Client, spark: SparkSession) -> int:
    return 1


@jobs.handler("nightly")
def nightly(payload: None, spark: SparkSession) -> None: ...


assert_type(jobs_of(score), Handler[Score, int, Job])
assert_type(jobs_of(score_async), Handler[Score, int, Job])
assert_type(score.job(Score("2026-11-21")), Job)
assert_type(nightly.job(), Job)
score.job("2026-11-21")  # E: incompatible type "str"; expected "Score"
score.job()  # E: Missing positional argument "payload"

"""Load the rows of a day as jobs from Airflow or Dagster, and ask whether they have ended: docs/guides/orchestrators.md."""

import os

from pyspark.sql import SparkSession
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from sa_jobqueue import JobQueue
from sa_jobqueue.pipeline.operations import count_write_chains
from sa_jobqueue.pipeline.spark import enqueue

jobs = JobQueue()


@jobs.keyword_handler("remind", max_attempts=5)
def remind(customer: str, day: str) -> None: ...


class JobsDiedError(Exception):
    """Some jobs of a load are dead letters."""


def load(day: str, write_id: str) -> int:
    """Enqueue a reminder for each customer of a day; a repetition has no effect."""
    spark = SparkSession.builder.getOrCreate()
    customers = spark.createDataFrame([("ada", day), ("ben", day)], "customer STRING, day STRING")
    return enqueue(customers, remind, url=os.environ["SA_JOBQUEUE_URL"], write_id=write_id).enqueued


def has_ended(write_id: str) -> bool:
    """Return whether all chains of a load have ended.

    Raises: JobsDiedError.
    """
    engine = create_engine(os.environ["SA_JOBQUEUE_URL"])
    with Session(engine) as session:
        chains = count_write_chains(session, write_id)
    engine.dispose()
    if chains is None:  # a load without rows is not recorded
        return True
    if chains.dead:
        raise JobsDiedError(f"{chains.dead} of {chains.total} jobs of {write_id} died: sa-jobqueue dead-letters list")
    return chains.open == 0

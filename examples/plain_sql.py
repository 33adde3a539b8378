"""The queue from plain SQL: the `job_queue` view, for clients that have no Python.

Run it with `python examples/plain_sql.py`. Every statement below could as well be typed into psql.
"""

import asyncio

from sqlalchemy import Engine, create_engine, text
from sqlalchemy.exc import DBAPIError

from sa_jobqueue import Job, JobQueue, Worker
from sa_jobqueue.testing.servers import open_server

jobs = JobQueue()


@jobs.handler("resize")
def resize(image: dict[str, int]) -> int:
    return image["width"] // image["scale"]


def run(engine: Engine, statement: str) -> None:
    """Run one statement in a separate transaction, and print its result or its error."""
    try:
        with engine.begin() as connection:
            result = connection.execute(text(statement))
            print(result.all() if result.returns_rows else f"{result.rowcount} row")
    except DBAPIError as error:
        print(f"refused: {error.orig.diag.message_primary.partition(': ')[2]}")


def main() -> None:
    with open_server() as server:
        engine = create_engine(server.url)
        Job.metadata.create_all(engine)

        # Enqueue: due now, unless it says otherwise.
        run(engine, """INSERT INTO job_queue (type_name, input) VALUES ('resize', '{"width": 640, "scale": 2}')""")
        run(engine, """INSERT INTO job_queue (type_name, input) VALUES ('resize', '{"width": 640, "scale": 0}')""")
        run(engine, "INSERT INTO job_queue (type_name, scheduled_at) VALUES ('resize', now() + interval '1 day')")

        # Cancel jobs that have not ended; invalid changes are refused for every role.
        run(engine, "UPDATE job_queue SET status = 'cancelled' WHERE scheduled_at > now()")
        run(engine, "UPDATE job_queue SET status = 'completed' WHERE status = 'pending'")

        # The attempt that divides by zero must be the last: this column is not the view's, but it is yours.
        run(engine, "UPDATE job SET max_attempts = 1 WHERE input->>'scale' = '0'")
        asyncio.run(Worker(jobs, engine).run_until_idle())
        run(engine, "SELECT status::text, output FROM job ORDER BY created_at")
        run(engine, "SELECT reason, error->>'type', input->>'scale' FROM dead_letter WHERE resolution IS NULL")

        # Redrive: the same job again, with fresh attempts.
        run(engine, "UPDATE job_queue SET status = 'pending' WHERE status = 'dead'")
        run(engine, "SELECT reason, resolution FROM dead_letter")
        engine.dispose()


if __name__ == "__main__":
    main()

# Output:
# 1 row
# 1 row
# 1 row
# 1 row
# refused: is pending, which cannot become completed
# 1 row
# [('completed', 320), ('dead', None), ('cancelled', None)]
# [('exhausted', 'ZeroDivisionError', '0')]
# 1 row
# [('exhausted', 'redriven')]

"""Blockers: a job that waits for others, gets their outputs, and sees which of them failed.

Run it with `python examples/blockers.py`.
"""

import asyncio

from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from sa_jobqueue import AttemptContext, Blockers, Continuation, Discard, Job, JobQueue, Worker, get_chain
from sa_jobqueue.models import WaitFor
from sa_jobqueue.operations import redrive_dead_letters
from sa_jobqueue.testing.servers import open_server

jobs = JobQueue()
library = {"b": "bees buzz", "c": "cats climb crags"}


@jobs.handler("count_words")
async def count_words(page: str) -> int:
    if page not in library:
        raise Discard(f"page {page} is missing")
    return len(library[page].split())


@jobs.handler("add_up")
async def add_up(counts: Blockers[list[int]]) -> int:
    return sum(counts.outputs)  # in the order of the blockers, whichever ended first


@jobs.handler("add_up_what_there_is")
async def add_up_what_there_is(counts: Blockers[list[int | None]]) -> str:
    missing = [str(outcome.error["message"]) for outcome in counts.failed]
    return f"{sum(filter(None, counts.outputs))} words, but {', '.join(missing)}"


@jobs.handler("count_book")
async def count_book(pages: list[str], ctx: AttemptContext) -> Continuation[int]:
    """Fan out and in from within a chain: the next job waits for jobs that are enqueued with it."""
    return ctx.continue_with(add_up, None, blockers=[count_words.job(page) for page in pages])


def main() -> None:
    with open_server() as server:
        engine = create_engine(server.url)
        Job.metadata.create_all(engine)
        with Session(engine) as session, session.begin():
            book = count_book.job(["b", "c"])
            pages = [count_words.job(page) for page in "abc"]
            strict = add_up.job(blockers=pages)  # waits, also for one that dies
            failing = add_up.job(blockers=[WaitFor(page, on_failure="fail") for page in pages])
            tolerant = add_up_what_there_is.job(blockers=[WaitFor(page, on_failure="continue") for page in pages])
            session.add_all([book, strict, failing, tolerant])  # the pages are added with those that wait for them
            ids = {"book": book.id, "strict": strict.id, "failing": failing.id, "tolerant": tolerant.id}

        def show() -> None:
            with Session(engine) as session:
                for name, chain_id in ids.items():
                    chain = get_chain(session, chain_id)
                    print(f"{name:9} {chain.status:10} {chain.output}")

        asyncio.run(Worker(jobs, engine).run_until_idle())
        show()
        library["a"] = "ants"
        with Session(engine) as session, session.begin():
            print(f"page a is there: {redrive_dead_letters(session).changed} redriven")
        asyncio.run(Worker(jobs, engine).run_until_idle())
        show()
        engine.dispose()


if __name__ == "__main__":
    main()

# Output:
# book      completed  5
# strict    blocked    None
# failing   dead       None
# tolerant  completed  5 words, but page a is missing
# page a is there: 2 redriven
# book      completed  5
# strict    completed  6
# failing   completed  6
# tolerant  completed  5 words, but page a is missing

"""Effects and completion in one commit: a handler that fails half way leaves nothing behind.

Run it with `python examples/transactional_effects.py`.
"""

import asyncio

from sqlalchemy import create_engine, select
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sa_jobqueue import AttemptContext, JobMixin, JobQueue, Worker
from sa_jobqueue.policies.retry import immediately
from sa_jobqueue.testing.servers import open_server


class Base(DeclarativeBase):
    pass


class Account(Base):
    __tablename__ = "account"

    name: Mapped[str] = mapped_column(primary_key=True)
    balance: Mapped[int]


class Job(JobMixin, Base):
    pass


jobs = JobQueue(Job)
emails: list[str] = []


@jobs.handler("transfer", retry=immediately)
async def transfer(amount: int, session: AsyncSession, ctx: AttemptContext) -> None:
    source, target = await session.get_one(Account, "ann"), await session.get_one(Account, "bob")
    source.balance -= amount
    await session.flush()
    if ctx.attempt == 1:
        raise ConnectionError("lost the network half way")  # the flushed half is rolled back
    target.balance += amount
    # A job enqueued here belongs to the same commit: it is there if and only if the transfer is.
    session.add(tell.job(f"bob: {amount} received"))


@jobs.handler("tell")
def tell(text: str) -> None:
    emails.append(text)


async def main() -> None:
    with open_server() as server:
        # A worker takes an `Engine` or an `AsyncEngine`; psycopg's URL makes both.
        engine = create_engine(server.url)
        Base.metadata.create_all(engine)
        with Session(engine) as session, session.begin():
            session.add_all([Account(name="ann", balance=100), Account(name="bob", balance=0), transfer.job(30)])
        async_engine = create_async_engine(server.url)
        await Worker(jobs, async_engine).run_until_idle()
        await async_engine.dispose()
        with Session(engine) as session:
            for account in session.scalars(select(Account).order_by(Account.name)):
                print(f"{account.name} has {account.balance}")
            attempts = session.scalars(select(Job.attempt).where(Job.type_name == "transfer")).one()
            print(f"transferred at attempt {attempts}; e-mails: {emails}")
        engine.dispose()


if __name__ == "__main__":
    asyncio.run(main())

# Output:
# ann has 70
# bob has 30
# transferred at attempt 2; e-mails: ['bob: 30 received']

"""E-mail after a sign-up: sent if and only if the sign-up commits, again if the server is busy, never again if refused.

Run it with `python examples/sending_email.py`. It needs aiosmtpd, for a mail server that refuses like a real one.
"""

import asyncio
import smtplib
from datetime import timedelta
from email.message import EmailMessage

from aiosmtpd.smtp import SMTP, Envelope
from sqlalchemy import Engine, create_engine, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from sa_jobqueue import AttemptContext, Cancel, Discard, JobMixin, JobQueue, Worker
from sa_jobqueue.policies.retry import immediately
from sa_jobqueue.testing.servers import open_server


class Base(DeclarativeBase):
    pass


class Job(JobMixin, Base):
    pass


class User(Base):
    __tablename__ = "app_user"

    id: Mapped[int] = mapped_column(primary_key=True)
    email: Mapped[str]


jobs = JobQueue(Job)
jobs.queue("mail", global_concurrency=4, rate_limit=100, rate_period=timedelta(minutes=1))  # what the server allows us
WAITS = immediately  # with a real server: Backoff(base=timedelta(minutes=1), cap=timedelta(hours=6))
SERVER = {
    "host": "127.0.0.1",
    "port": 0,
}  # a real one also needs starttls(), and login() with a password from the environment
make_session = sessionmaker[Session]()


@jobs.handler("welcome", queue="mail", max_attempts=12, retry=WAITS, timeout=timedelta(minutes=2))
def welcome(user_id: int, ctx: AttemptContext) -> None:
    """Send one message. It is rendered now, from the current rows, not from those at the time of the enqueue."""
    with make_session() as session:  # not the worker's, whose transaction would stay open while the server answers
        user = session.get(User, user_id)
    if user is None:
        raise Cancel("the user is gone")
    message = EmailMessage()
    message["From"], message["To"], message["Subject"] = "shop@example.test", user.email, "Welcome"
    # The same in each attempt: a mail program shows a message that arrives twice once.
    message["Message-ID"] = f"<{ctx.job.id}@example.test>"
    message.set_content(f"Hello {user.email}")
    try:
        with smtplib.SMTP(**SERVER, timeout=30) as smtp:
            smtp.send_message(message)
    except (smtplib.SMTPRecipientsRefused, smtplib.SMTPDataError) as error:
        if is_permanent(error):
            raise Discard(str(error)) from None
        raise  # greylisting, a full mailbox: tried again, like a refused connection, or a password that is wrong


def is_permanent(error: smtplib.SMTPRecipientsRefused | smtplib.SMTPDataError) -> bool:
    """Return whether another attempt would get the same answer: a code of 5xx."""
    if isinstance(error, smtplib.SMTPRecipientsRefused):
        return all(code >= 500 for code, _ in error.recipients.values())
    return error.smtp_code >= 500


def sign_up(engine: Engine, user_id: int, email: str) -> None:
    """Add the user and the job in one commit, as a view does."""
    with Session(engine) as session, session.begin():
        session.add(User(id=user_id, email=email))
        session.add(welcome.job(user_id))
        if "@" not in email:
            raise ValueError(f"{email} is not an address")


class Mailbox:
    """A server that greylists each recipient once, and knows everyone but unknown@example.test."""

    def __init__(self) -> None:
        self.seen: set[str] = set()
        self.messages: list[str] = []

    async def handle_RCPT(  # noqa: N802
        self, server: object, session: object, envelope: Envelope, address: str, options: object
    ) -> str:
        if address == "unknown@example.test":
            return "550 no such mailbox"
        if address not in self.seen:
            self.seen.add(address)
            return "451 try again later"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: object, session: object, envelope: Envelope) -> str:  # noqa: N802
        self.messages.append(envelope.rcpt_tos[0])
        return "250 OK"


async def main(url: str) -> None:
    engine, mailbox = create_engine(url), Mailbox()
    make_session.configure(bind=engine)
    Base.metadata.create_all(engine)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: SMTP(mailbox, hostname="localhost"), SERVER["host"], 0)
    SERVER["port"] = server.sockets[0].getsockname()[1]
    for user_id, email in enumerate(["ann@example.test", "unknown@example.test", "not an address", "bob@example.test"]):
        try:
            sign_up(engine, user_id, email)
        except ValueError as error:
            print(f"not signed up: {error}")
    await Worker(jobs, engine).run_until_idle()
    server.close()
    print("delivered:", *sorted(mailbox.messages))
    with Session(engine) as session:
        for job in session.scalars(select(Job).order_by(Job.created_at)):
            print(f"{session.get_one(User, job.input).email}: {job.status} after {job.attempt} attempts")
    engine.dispose()


if __name__ == "__main__":
    with open_server() as database:
        asyncio.run(main(database.url))

# Output:
# not signed up: not an address is not an address
# delivered: ann@example.test bob@example.test
# ann@example.test: completed after 2 attempts
# unknown@example.test: dead after 1 attempts
# bob@example.test: completed after 2 attempts

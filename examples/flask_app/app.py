"""A blog in Flask: publishing a post enqueues the job that tells its readers.

    alembic upgrade head          # its own tables and the queue's
    flask run                     # the site
    sa-jobqueue worker app:jobs   # the worker

The queue's ready-made models stay on their own metadata here; `migrations/env.py` lists both.
"""

import os
from datetime import timedelta

from flask import Flask, abort, request
from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from sa_jobqueue import JobQueue, list_jobs


class Base(DeclarativeBase):
    pass


class Post(Base):
    __tablename__ = "post"

    id: Mapped[int] = mapped_column(primary_key=True)
    title: Mapped[str]
    readers_told: Mapped[bool] = mapped_column(default=False)


engine = create_engine(os.environ["SA_JOBQUEUE_URL"])
make_session = sessionmaker(engine)
jobs = JobQueue()


@jobs.handler("tell_readers", timeout=timedelta(minutes=1))
def tell_readers(post_id: int, session: Session) -> None:
    session.get_one(Post, post_id).readers_told = True


app = Flask(__name__)


@app.post("/posts")
def publish():
    with make_session.begin() as session:  # one transaction: the post and its job, or neither
        post = Post(title=request.json["title"])
        session.add(post)
        session.flush()  # gives the post its id
        if not post.title:
            abort(422)  # raises, so nothing is kept
        session.add(tell_readers.job(post.id))
        return {"id": post.id}, 201


@app.get("/posts/<int:post_id>")
def show(post_id):
    with make_session() as session:
        post = session.get(Post, post_id) or abort(404)
        return {"title": post.title, "readers_told": post.readers_told}


@app.get("/jobs")
def show_jobs():
    with make_session() as session:
        return [{"type": job.type_name, "status": job.status} for job in list_jobs(session, limit=20)]

"""A blog with Flask-SQLAlchemy: `db.session` in views and handlers, and `flask jobs ...` on the command line.

    flask --app flask_sqlalchemy_app run            # the site
    flask --app flask_sqlalchemy_app jobs worker    # a worker, with all options of `sa-jobqueue worker`
    flask --app flask_sqlalchemy_app jobs health

The job tables are in the application's own metadata: `target_metadata = db.metadata` is all that Alembic needs.
"""

import asyncio
import os
from uuid import UUID

from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import ForeignKey
from sqlalchemy.orm import Mapped, Session, mapped_column, relationship

from sa_jobqueue import JobMixin, JobQueue
from sa_jobqueue.integrations.flask import FlaskJobs
from sa_jobqueue.testing.servers import open_server

db = SQLAlchemy()


class Job(JobMixin, db.Model):
    """The queue: a table among the application's own."""


class Post(db.Model):
    id: Mapped[int] = mapped_column(primary_key=True)
    title: Mapped[str]
    words: Mapped[int | None]
    job_id: Mapped[UUID | None] = mapped_column(ForeignKey(Job.id))
    job: Mapped[Job | None] = relationship()


jobs = JobQueue(Job)
queue = FlaskJobs(jobs, db)


def count_words(post_id: int) -> int:
    """Count the words of a post. It does not know of jobs: views and handlers call it."""
    post = db.get_or_404(Post, post_id)
    post.words = len(post.title.split())
    return post.words


@jobs.handler("count")
def count(post_id: int, session: Session) -> int:
    return count_words(post_id)  # `db.session` is `session` here: one commit with the job's completion


def create_app() -> Flask:
    app = Flask(__name__)
    app.config["SQLALCHEMY_DATABASE_URI"] = os.environ["SA_JOBQUEUE_URL"]
    db.init_app(app)
    queue.init_app(app)

    @app.post("/posts/<title>")
    def publish(title: str):
        post = Post(title=title)
        db.session.add(post)
        db.session.flush()  # gives the post its id
        post.job = count.job(post.id)
        db.session.commit()  # the post and its job, or neither
        return {"id": post.id}, 201

    @app.get("/posts/<int:post_id>")
    def show(post_id: int):
        post = db.get_or_404(Post, post_id)
        return {"words": post.words, "job": post.job.status}

    return app


def main() -> None:
    with open_server() as server:
        os.environ["SA_JOBQUEUE_URL"] = server.url
        app = create_app()
        with app.app_context():
            db.create_all()  # a real application has a migration
        client = app.test_client()
        print("POST", client.post("/posts/Hello, brave new world").status_code)
        print("GET", client.get("/posts/1").json)
        asyncio.run(queue.worker().run_until_idle())  # in production: flask jobs worker
        print("GET", client.get("/posts/1").json)
        print(app.test_cli_runner().invoke(args=["jobs", "queues", "pause", "default"]).output.strip())
        with app.app_context():
            db.engine.dispose()


if __name__ == "__main__":
    main()

# Output:
# POST 201
# GET {'job': 'pending', 'words': None}
# GET {'job': 'completed', 'words': 4}
# 1 queue paused

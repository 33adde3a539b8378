"""The application's Alembic environment, for two collections of tables: its own, and the ready-made queue's."""

import os

from alembic import context
from app import Base
from sqlalchemy import create_engine

import sa_jobqueue

metadata = [Base.metadata, sa_jobqueue.Job.metadata]

if context.is_offline_mode():
    context.configure(dialect_name="postgresql", target_metadata=metadata, literal_binds=True)
    with context.begin_transaction():
        context.run_migrations()
else:
    engine = create_engine(os.environ["SA_JOBQUEUE_URL"])
    with engine.connect() as connection:
        context.configure(connection=connection, target_metadata=metadata)
        with context.begin_transaction():
            context.run_migrations()
    engine.dispose()

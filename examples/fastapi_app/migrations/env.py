"""The application's Alembic environment. Nothing here is about the queue: its Alembic plugin is found automatically."""

import os

from alembic import context
from models import Base
from sqlalchemy import create_engine

if context.is_offline_mode():
    context.configure(dialect_name="postgresql", target_metadata=Base.metadata, literal_binds=True)
    with context.begin_transaction():
        context.run_migrations()
else:
    engine = create_engine(os.environ["SA_JOBQUEUE_URL"])
    with engine.connect() as connection:
        context.configure(connection=connection, target_metadata=Base.metadata)
        with context.begin_transaction():
            context.run_migrations()
    engine.dispose()

"""Your application's PostgreSQL as its job queue."""

__version__ = "0.1.0"

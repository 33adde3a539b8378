"""Access to PostgreSQL: connections, timeouts, poolers, COPY, compiled statements."""

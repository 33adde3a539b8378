"""How the library talks to PostgreSQL: connections, timeouts, poolers, COPY, compiled statements."""

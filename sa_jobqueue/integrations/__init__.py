"""Small modules that fit the queue into a framework; each needs the framework it is named after, and nothing else.

- `starlette`, `fastapi`: a lifespan that runs a worker in the process, and routes for probes; `litestar`: a plugin;
- `flask`: `flask jobs ...`, and handlers in the application's context with the session of Flask-SQLAlchemy;
- `sentry`: errors of handlers with the job, and check-ins of schedules; `structlog`: the job in every log line;
- `embedding`: what runs a worker beside an application on any asyncio server.
"""

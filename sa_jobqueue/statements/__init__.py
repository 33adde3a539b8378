"""SQL as functions: each returns one SQLAlchemy Core construct and executes nothing.

Statements of the hot path are built once per `Job` class and take their values as bound parameters, named in the
docstring. They are planned on the worker's own connections, whose guards (`db.sessions.GUARDS`) rule out every plan
that only looks cheap because a queue table's statistics swing. Statements that also run on an application's session are
marked as such.
"""
